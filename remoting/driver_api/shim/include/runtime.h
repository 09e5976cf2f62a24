// Devices, contexts, streams, captures and host functions, as layers above runtime/ use them.
#ifndef GP_RUNTIME_H
#define GP_RUNTIME_H

#include "hostmem.h"

// snapshot.c
int gp_start_servers(void);  // after gp_connect: learn what devices they have

// device.c
int gp_device_attribute(int *value, int attribute, int device);

// context.c
void gp_forget_context(const struct gp_context *known);  // one that cuCtxCreate made

// locals.c: the runtime's storage in a context; it names the current one by 0 or -1 as well
int gp_local_context(void *context, struct gp_context **found);
int gp_local_get(void **value, void *context, const void *key);
int gp_local_put(void *context, void *key, void *value,
                 void (*destroy)(void *, void *, void *));
int gp_local_delete(void *context, const void *key);
void gp_end_locals(struct gp_context *context);

// known.c: images that the server has already
bool gp_read_known(int server, const unsigned char *bytes, size_t size);  // ends the snapshot
int gp_load_known(uint64_t module, bool library, const void *bytes, size_t size);

// stream_id.c
int gp_stream_id(void *stream, uint64_t *id);
struct gp_handle *gp_stream_handle(void *stream);
void *gp_thread_stream(void *stream);
void gp_per_thread(int on);

// stream.c
int gp_synchronize_stream(void *stream);
int gp_context_of_stream(void *stream, void **context);
int gp_await_event(void *event);
int gp_record_event(void *event, void *stream, unsigned flags);
void gp_note_idle(struct gp_handle *stream, uint64_t before);  // all that it had got at that position is over
void gp_note_device_idle(int device, uint64_t before);
bool gp_is_device_idle(int device);  // as far as is known here
// The time between two events if it is known, whose handles are checked.
bool gp_known_elapsed(float *elapsed, const void *start, const void *end);
// Whether a stream has at most copies to do of which nothing here can show whether they are over; note
// that it has got one more at that position; have the worker wait for them, false where it is no such stream.
bool gp_only_copies(const struct gp_handle *stream);
void gp_note_copied(struct gp_handle *stream, uint64_t before);
bool gp_await_copies(struct gp_handle *stream);
void gp_recorded_elsewhere(void *event);  // by graphs or other processes: its end is never kept

// captures.c
uint64_t gp_capture_of(void *stream);
uint64_t gp_capture_of_handle(const struct gp_handle *handle);  // of a stream or an event
bool gp_captures_any(void);  // whether any thread captures now
// What a captured stream said when it was asked whether it is done, which ends its capture.
int gp_spoil_capture(const struct gp_handle *stream, int status);
struct gp_handle *gp_captured_graph(void *stream);  // NULL when it is not captured

// host.c
// While functions are pending: what an event stands for, what a stream waits for, and a wait for
// the functions whose results a stream's next operation may read from the host's memory. It may
// be given up after a while, with false, as they may wait for what this thread does next.
void gp_host_recorded(struct gp_handle *event, const struct gp_handle *stream);
void gp_host_waits(struct gp_handle *stream, const struct gp_handle *event);
bool gp_host_settle(const struct gp_handle *stream, int64_t patience_ns);  // 0: without an end
// Whether the functions that only tell have run of which a stream, an event's record, or all up to a
// number are in front; or a wait until they have.
bool gp_host_told(const struct gp_handle *stream, bool waits);
bool gp_host_told_before(const struct gp_handle *event, bool waits);
uint64_t gp_host_last(void);  // the last that is pending, 0 for none
void gp_host_told_all(uint64_t last);
int gp_host_launched(void *stream);  // a graph was, and may call its host nodes until it ends
// A host node of a graph, by the number by which the worker calls it: made with one reference, and
// one reference less.
int gp_host_node(void (*function)(void *), void *data, uint64_t *id);
void gp_host_node_drop(uint64_t id);

// weights.c: how much of a stream's queue a record takes, or GP_ALONE
#define GP_ALONE UINT64_MAX
uint64_t gp_weight_of(int op, uint64_t bulk);
bool gp_keeps_managed(void);

// tellers.c: whether a host function does nothing but tell threads that a stream has come to it
bool gp_only_tells(void (*function)(void *));
bool gp_tell_is_urgent(const struct gp_handle *stream, uint64_t position);  // of its record: send it now

// host_node.c: host nodes of graphs, by the number by which the worker calls one
#define GP_NODE_NUMBER (1ULL << 62)
int gp_host_node_new(void (*function)(void *), void *data, uint64_t *id);
bool gp_host_node_at(uint64_t id, void (**function)(void *), void **data);
void gp_host_node_keep(uint64_t id);
int gp_host_node_release(uint64_t id);  // its server if it ends with this reference, else -1
bool gp_host_nodes_ending(void);
void gp_host_nodes_end(int server, uint64_t oldest);  // that end before the oldest pending call

#endif
