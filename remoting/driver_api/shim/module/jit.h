// Options of the compiler in the server's driver, and its logs; jit.c.
#ifndef GP_JIT_H
#define GP_JIT_H

#include "core.h"

#define GP_JIT_WORDS 6  // options that travel

struct gp_log {
    char *text;  // NULL: not wanted
    size_t room;
    void **size;  // where the program looks for how much of it is used
};

struct gp_jit {
    bool wanted;             // it has options that travel, or wants a log
    struct gp_log logs[2];   // what it did, what is wrong
    uint64_t words[GP_JIT_WORDS];
};

void gp_read_jit(unsigned count, const int *options, void **values, struct gp_jit *jit);
void gp_write_jit(const struct gp_jit *jit, const unsigned char *body, size_t size);

#endif
