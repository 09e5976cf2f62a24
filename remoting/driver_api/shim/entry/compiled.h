// The table through which NVRTC keeps what it compiles.
#ifndef GP_COMPILED_H
#define GP_COMPILED_H

typedef void (*gp_slot)(void);
#define GP_COMPILED_SLOTS 32
extern const gp_slot gp_compiled_table[GP_COMPILED_SLOTS];

#endif
