// The lines to the workers, as layers above wire/ use them.
#ifndef GP_WIRE_H
#define GP_WIRE_H

#include "base.h"

// One call that waits for its reply.
struct gp_request {
    uint64_t id;
    int status;
    bool done;
    void *body;  // where the reply's body goes
    size_t capacity;
    size_t length;
    bool grows;  // body is allocated to fit
    void *bulk;  // where the reply's bulk bytes go
    size_t bulk_size, bulk_read;
    bool earlier;  // the failure is of an asynchronous call before
    void *line;  // that it went by
    struct gp_request *next;
};

// link.c: the agent and the data connections; 0 or an error
int gp_connect(void);

// The start of a line (line.h says how it works): it says hello, whose reply is to be freed; it
// runs; and, where there is one server only, it is that server's.
struct gp_link;
int gp_wire_open(struct gp_link *link, struct gp_request *hello);
void gp_wire_ask_records(int server);  // which records the worker knows
bool gp_knows(int op);                 // the worker of the server that calls go to now
bool gp_knows_at(int server, int op);
int gp_wire_run(int server);
void gp_wire_prefer(int server);
#define GP_WAITS 1024
extern unsigned long gp_waits[GP_WAITS];  // round trips, by record
void gp_wire_forked(void);
// Of the server that calls go to now:
void gp_flush(void);
uint64_t gp_position(void);  // of the line: calls appended so far
bool gp_has_hung_up(void);   // the line's other end, as far as the kernel knows
void gp_leave(void);  // the program ends
int gp_post(int op, const uint64_t *values, int count);
int gp_call(int op, const uint64_t *values, int count, void *reply, size_t capacity);
// A call in two steps: asked, and later waited for. The request must stay until then.
void gp_ask(struct gp_request *request, int op, const uint64_t *values, int count);
int gp_hear(struct gp_request *request);
// Append a record by hand: gp_open leaves the line locked until gp_close.
unsigned char *gp_open(int op, int flags, size_t size);
void gp_close(void);
uint64_t gp_opened_position(void);  // of the record that is open
int gp_exchange(struct gp_request *request, int op, const uint64_t *values, int count,
                const void *text, size_t text_size, const void *bulk, size_t bulk_size);
int gp_post_bulk(int op, const uint64_t *values, int count, const void *bulk, size_t size);
// The number of a download that arrives by itself; 0 when too much is on its way already.
uint64_t gp_expect_download(void *target, size_t size, uint64_t stream);
void gp_await_host(void);  // until a host function's turn comes, or the GPU is lost
bool gp_awaits_download(int server, const void *start, size_t size);  // to any of these addresses

#include "generated_packers.h"

#endif
