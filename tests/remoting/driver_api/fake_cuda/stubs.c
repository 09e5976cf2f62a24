/* A weak stand-in for every exported name: what no other file defines says so, and returns 801. */
#define API __attribute__((visibility("default")))
void note_missing(const char *name);

#define EXPORT(symbol)                                                                             \
    API __attribute__((weak)) unsigned symbol(void);                                               \
    API __attribute__((weak)) unsigned symbol(void) {                                              \
        note_missing(#symbol);                                                                     \
        return 801; /* CUDA_ERROR_NOT_SUPPORTED */                                                 \
    }
/* Compiled without abi.h's prototypes, since a stand-in takes whatever it is given. */
#include "exports.inc"
