// Modules and libraries, and their functions, as the files about them share them.
#ifndef GP_MODULE_H
#define GP_MODULE_H

#include "core.h"
#include "image.h"

#define NAME_MAX_SIZE 16384
#define LAUNCH_ATTRIBUTES_MAX 32
#define LAUNCH_ATTRIBUTE_SIZE 72
#define GP_UPDATABLE_NODE 13  // of CUlaunchAttributeID

// Return whether the driver has an attribute of launches, or of kernels in graphs.
bool gp_has_attribute(int attribute, bool launch);

struct parameter {
    uint32_t offset, size;
};

// An answer about one function.
struct occupancy {
    struct occupancy *next;
    uint64_t key[5];
    uint64_t value;
};

struct function {
    struct gp_handle handle;
    struct function *next;   // of the same module
    struct function *older;  // of all
    struct gp_handle *module;
    uint64_t servers;  // where the worker knows it, a bit for each
    char *name;
    uint32_t count, bytes;
    struct parameter *parameters;
    pthread_mutex_t lock;
    struct attributes *attributes[GP_DEVICES_MAX];
    struct occupancy *occupancies;
};

struct module {
    struct gp_handle handle;
    bool library;
    pthread_mutex_t lock;
    struct function *functions;
    struct symbol *symbols;
    struct module *modules[GP_DEVICES_MAX];  // of a library: its modules by device
    uint64_t servers;       // where it is loaded, a bit for each
    struct gp_image image;  // of a library that other servers may yet need
};

// CUlaunchConfig
struct launch_config {
    uint32_t grid[3], block[3], shared;
    void *stream;
    const unsigned char *attributes;
    uint32_t count;
};

// launch.c: what holds a program's handle is not for the server's driver
void gp_ignore_events(unsigned char *attributes, uint32_t count);

static inline uint64_t gp_bit_here(void) { return 1ull << gp_here(); }

// module.c
int gp_check_module(const void *module, bool library);
int gp_library_here(struct module *module);  // have the server of this call know it; locked
int gp_module_of_library(void **module, void *library);

// attributes.c
int gp_function_attribute(int *value, int attribute, void *function);

// occupancy_known.c: what is known changes with a function's attributes
void gp_forget_occupancy(struct function *function);  // its lock is held
bool gp_recall_clusters(const void *question, size_t size, int device, uint64_t *value);
void gp_keep_clusters(const void *question, size_t size, int device, uint64_t value);
void gp_forget_clusters(void);

#endif
