// The line to a worker: calls in one total order, replies to the threads that wait, downloads.
// There is one for each server of the lease; base/route.c says which one a thread's calls take.
//
// Frames. A frame to the worker is a header of 16 bytes, a body of records, and bulk bytes that
// belong to its last record. Records are appended to a buffer, which leaves when a thread waits for
// a reply, when it holds FLUSH_SIZE bytes, or FLUSH_DELAY_NS after its first record. A frame from
// the worker is a struct answer, its body and its bulk bytes. The bulk bytes of a large copy may be a
// stripe instead: they go by other connections (lanes.h), and the frame or the answer says so.
//
// Files, each of which calls those before it: lanes.c (further connections), line.c (which lines
// there are, how they are lost), receive.c (answers), send.c (the buffer, records), exchange.c (calls
// that wait for a reply), open_lanes.c.
//
// Threads. A line has no thread that only reads: a thread that waits for a reply reads, for itself
// and for the others. Three kinds of threads use a line. The program's threads append, send, wait
// and read. The line's flusher (send.c) sends what has lain in the buffer for long. The thread of
// host functions (runtime/host.c) reads while functions are pending, to learn whose turn has come.
//
//   reading        | a thread waits           | an answer comes          | the connection breaks
//   ---------------+--------------------------+--------------------------+-------------------------
//   nobody reads   | it becomes the reader    | it stays in the socket   | the next thread to wait
//                  |                          |                          | or to send finds out
//   a thread reads | it sleeps on `answered`  | its request gets it; the | the reader loses the
//                  |                          | reader wakes all, and    | line; all that wait get
//                  |                          | goes on if it still waits| DEVICE_UNAVAILABLE
//   lost           | it gets that error       | -                        | -
//
//   the buffer     | a record is appended     | FLUSH_DELAY_NS pass      | a thread asks
//   ---------------+--------------------------+--------------------------+-------------------------
//   empty          | the flusher is woken     | -                        | it sends its record
//   filling        | from FLUSH_SIZE on the   | the flusher sends all    | it sends all, its record
//                  | thread sends all         |                          | last
//   lost           | it goes nowhere          | -                        | it gets the error above
//
// There are two buffers, so that one is filled while the other is sent.
//
// Locks, in the order in which they are taken: gp_push_lock or that of managed memory (hostmem),
// send_lock, line_lock, and that of host functions. read_lock is taken behind any of these, and
// held for no call of another file. What is registered in gp_hooks is called without line_lock and
// read_lock, but perhaps with send_lock, by a sender that reads.
//
// Blocking. gp_open and gp_post wait for no reply, unless host functions are pending: then at their
// gate. They may wait for a thread that sends, and for room in the socket; a sender reads
// meanwhile, so that two full sockets cannot block each other for ever. gp_call, gp_exchange and
// gp_hear wait for the worker, and so for what is before them on the line. Between gp_open and
// gp_close a thread holds line_lock: it appends nothing else and touches no managed memory, whose
// faults append.
//
// Never true: a reply goes to a request that has returned; a thread sleeps on `answered` while
// nobody reads; records leave in another order than that in which they were appended; a lost line
// is used.
#ifndef GP_LINE_H
#define GP_LINE_H

#include "wire.h"
#include "lanes.h"
#include "link.h"

#include <time.h>

#define BUFFER_SIZE (512 * 1024)
#define READ_SIZE (64 * 1024)
#define LANES_BROKE "one of the connections to the server broke"
#define LANES_PAY (32u << 20)  // bytes of large copies, after which lanes are opened

struct frame {
    uint32_t magic, body;
    uint64_t bulk;
};

struct record {
    uint16_t op, flags;
    uint32_t size;
};

struct buffer {
    size_t used;  // behind the frame's header
    unsigned char bytes[BUFFER_SIZE];
};

struct download {
    uint64_t id;
    unsigned char *target;
    size_t size;
    uint64_t stream;
    struct download *next;
};

struct line {
    struct gp_link *link;
    pthread_mutex_t line_lock;  // the open buffer
    pthread_mutex_t send_lock;  // taken before line_lock
    pthread_cond_t dirty;
    struct buffer *open_buffer, *spare_buffer;
    int device;  // that the worker will have when it reaches the end of the buffer
    uint64_t position;
    bool flusher_waits;

    pthread_mutex_t read_lock;
    pthread_cond_t answered;
    bool reading;
    struct gp_request *waiting;
    struct download *downloads, **downloads_end;  // in the order in which they were asked for
    unsigned download_count;
    size_t download_bytes;
    unsigned char read_buffer[READ_SIZE];
    size_t read_start, read_end;
    unsigned spin_pause;  // answers that are not awaited awake for long
    unsigned char *mirror;  // what kernels wrote, as it comes in
    int64_t leaving;  // until when to send, 0 for ever: the program ends
    struct gp_request announced;  // done: a host function's turn has come

    struct gp_lanes *up, *down;  // NULL without; set once, and those that go up when all are there
    uint64_t carried;            // bytes of large copies, until lanes are opened
};

// line.c
extern struct line *gp_lines[GP_SERVERS_MAX];  // NULL for servers that this process does not use
extern int gp_line_count;                      // up to the last that is used
extern struct line *gp_only_line;              // unless there are several
void gp_line_lose(struct line *line, const char *why);
void gp_line_lose_one(struct line *line);  // without a word
// Count bytes of a large copy; once they are many, lanes are opened.
void gp_line_carried(struct line *line, uint64_t size);
// Look for what ends a session without a word on its connection.
bool gp_line_still_there(struct line *line);

static inline struct line *gp_line_here(void) {
    return __builtin_expect(gp_several, 0) ? gp_lines[gp_here()] : gp_only_line;
}

static inline bool gp_line_is_lost(const struct line *line) {
    return gp_is_lost_at(line->link->server);
}

// receive.c: wait until request is done, or, without one, read one answer if nobody else reads.
void gp_line_await(struct line *line, struct gp_request *request);

// send.c
void gp_line_gate(int op, uint64_t size, uint64_t bulk);
// Append a record; line_lock is held, and full buffers are sent first.
unsigned char *gp_line_append(struct line *line, int op, int flags, size_t size, int device);
// Send the buffer and bulk bytes behind it; send_lock and line_lock are held, and line_lock is
// released before anything is sent.
void gp_line_send(struct line *line, const void *bulk, size_t bulk_size);
void *gp_line_flush_late(void *line);  // the flusher

// exchange.c: ask the worker of a line; gp_hear waits for the answer
void gp_line_ask(struct line *line, int device, struct gp_request *request, int op,
                 const uint64_t *values, int count);

#endif
