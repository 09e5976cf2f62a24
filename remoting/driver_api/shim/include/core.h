// The interfaces of all layers to those above. Files of a low layer include the header of theirs:
// base.h, wire.h, hostmem.h or runtime.h, each of which includes the one before.
#ifndef GP_CORE_H
#define GP_CORE_H

#include "runtime.h"

// --- memory/

// memory.c
int gp_free(uint64_t address);  // what cuMemAlloc or cuMemAllocManaged gave

// kept.c: memory that was freed and is kept for a moment
#define GP_KEPT_NS 20000000
bool gp_keep(const struct gp_range *range, const void *context);  // false where the worker must free it
bool gp_take_kept(uint64_t size, struct gp_range *taken);         // for the current context
void gp_note_asked(uint64_t size);  // the worker is asked for so much: nothing kept has this size
void gp_free_kept(void);  // before a call that needs the memory, or tells how much there is
// Before a stream waits for a value: an older worker, which does not say what calls it knows, would not free it first.
void gp_free_kept_first(void);

// copies.c
bool gp_between_servers(uint64_t one, uint64_t other);  // both are devices' memory, of different ones
int gp_copy_across(uint64_t target, uint64_t source, size_t size, void *stream);
// Wait for what was sent to a stream, if an address is of pinned memory of the host.
int gp_settle_host(uint64_t address, void *stream);

// virtual.c and pool.c: what pointers are asked for
unsigned long long gp_handles_allowed(const struct gp_range *range);
bool gp_is_virtual(const struct gp_range *range);  // mapped by cuMemMap
void *gp_pool_of(const struct gp_range *range);

// context_end.c
int gp_destroy_context(void *context);

// peers.c: from one server's memory to another's; GP_NOT_SUPPORTED where their workers cannot
// connect
int gp_copy_direct(uint64_t target, uint64_t source, size_t size, void *stream);

// --- module/

// function.c, launch.c: what graphs need of functions
int gp_function_bytes(void *function, void **parameters, void **extra, unsigned char **bytes,
                      uint32_t *size);  // of all parameters, to be freed
void **gp_function_pointers(void *function, unsigned char *bytes);  // to each, to be freed
void *gp_function_by_id(uint64_t id);
const char *gp_function_name(void *function);
bool gp_function_is_kernel(void *function);  // of a library
int gp_function_here(void *function);        // checked, and known to the server of this call
int gp_module_here(const void *module);      // a CUmodule, and no library

// launch.c: as cuLaunchKernel
int gp_launch_kernel(void *function, const unsigned grid[3], const unsigned block[3],
                     unsigned shared, void *stream, void **parameters, void **extra);

// module.c, function.c: as cuModuleLoadData and so on
int gp_load_module(void **module, const void *image);
int gp_count_functions(unsigned *count, void *module);
int gp_list_functions(void **functions, unsigned count, void *module);

// --- rare/

// green.c
int gp_green_record(void *green, void *event);
int gp_green_wait(void *green, void *event);

// --- entry/

struct gp_symbol {
    const char *name;
    int version;
    int per_thread;
    int implemented;
    void (*function)(void);
};

// process.c
// What the generated files list: the names that can be looked up, in their order, and functions
// that are not there, with how often each was called.
struct gp_lists {
    const struct gp_symbol *symbols;
    int symbol_count, missing_count;
    const char *const *missing_names;
    unsigned long *missing_calls;
};
extern struct gp_lists gp_lists;
int gp_missing(int index);

#endif
