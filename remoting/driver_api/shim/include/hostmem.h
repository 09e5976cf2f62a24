// The host's memory that kernels see, as layers above hostmem/ use it.
//
// Pinned memory (pinned.c) has a mirror on the server once kernels may see it (mapped.c). The
// shadow is what both sides have, so that each side's own writes are found by comparison with it.
// Of larger pieces the blocks are closed to writes, so that only those written to are compared.
// Smaller pieces are always open. Managed memory (managed.c) lies on one side at a time, block by
// block.
//
//   tracked block | the program writes | gp_push_mapped      | kernels' writes  | a synchronisation
//                 |                    |                     | arrive           | ends
//   --------------+--------------------+---------------------+------------------+------------------
//   open          | -                  | closed; what is new | are merged in    | -
//                 |                    | is sent             |                  |
//   closed        | a fault: open      | -                   | are merged in,   | open, if lately
//                 |                    |                     | through `alias`  | written to
//
//   managed block | the program reads  | the program writes  | gp_push_mapped
//   --------------+--------------------+---------------------+------------------
//   stale         | a fault: fetched,  | a fault: fetched,   | -
//                 | and clean          | and dirty           |
//   clean         | -                  | a fault: dirty      | stale
//   dirty         | -                  | -                   | sent, and stale
//
// Who calls whom. gp_push_mapped runs before a launch, a copy and what else the GPU may do, called
// by the wire through gp_hooks where a call is posted, by others before they open a record. The
// wire's reader brings what kernels wrote through gp_hooks. faults.c has the signal, and asks
// mapped.c and managed.c whose memory it was. sync.c waits for the GPU with both done.
//
// Locks, in the order in which they are taken: gp_push_lock (the list, and what is being sent) or
// those of managed memory (which variables are known, and the rest), never both; then
// gp_mapped_lock (the list, and states of blocks), which a thread that reads for the wire takes
// beside any other. A fault takes gp_mapped_lock or that of managed memory, so nothing touches a
// closed block while it holds them: the library writes through `alias`.
#ifndef GP_HOSTMEM_H
#define GP_HOSTMEM_H

#include "wire.h"

// sync.c
int gp_synchronize(int op, uint64_t id);
int gp_drain(const void *start, size_t size);  // until nothing is on its way there any more

// pinned.c
// Kernels see the host's pinned memory under the program's own address natively, and here where
// that is free on the server; gp_see puts the right one in its place.
int gp_see(uint64_t *address);
int gp_free_host(void *address);
int gp_unregister_host(void *address);
void gp_end_mirrors(const struct gp_range *range);  // its bytes are here from then on

// mapped.c
// Where the server of this call keeps these bytes of the host, if it has a mirror of all of them.
// Kernels before a copy write there, and kernels behind it read there, so copies have to go there
// as well.
bool gp_mirror_of(const void *host, size_t size, uint64_t *seen);
bool gp_is_mirror(uint64_t address);  // this, of the server's, is the mirror of memory of the host
void gp_open_wanted(void);  // a synchronisation is over, and the program may write
void gp_push_mapped(void);  // what the program wrote to memory that kernels see

// merge.c; a mask has a bit for each byte, the first one lowest
size_t gp_find_new(const unsigned char *fresh, const unsigned char *known, unsigned char *mask,
                   size_t size);  // how many bytes are
void gp_merge(unsigned char *target, const unsigned char *fresh, const unsigned char *mask,
              size_t size);

#endif
