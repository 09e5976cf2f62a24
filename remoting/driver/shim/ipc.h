// Tokens for what other processes of the lease may open.
#ifndef GP_IPC_H
#define GP_IPC_H

#include "core.h"

#include <sys/mman.h>

#define GP_TOKEN_WORDS 4
#define GP_INTERPROCESS 4  // CU_EVENT_INTERPROCESS

int gp_make_descriptor(int *descriptor, const uint64_t token[GP_TOKEN_WORDS]);
int gp_read_descriptor(int descriptor, uint64_t token[GP_TOKEN_WORDS]);

#endif
