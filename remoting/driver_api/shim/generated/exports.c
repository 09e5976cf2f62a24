// The functions of CUDA that are missing here, and the table of all, which cuGetProcAddress looks up.
// By hand, around what generate.py writes: a row for each.
#include "core.h"

#define MISSING(name) AT_##name,
enum {
#include "generated_missing.h"
    MISSING_COUNT
};
#undef MISSING

#define MISSING(name) \
    GP_EXPORT int name(void) { return gp_missing(AT_##name); }
#include "generated_missing.h"
#undef MISSING

#define MISSING(name) #name,
static const char *const missing_names[] = {
#include "generated_missing.h"
};
#undef MISSING
static unsigned long missing_calls[MISSING_COUNT];

#define SYMBOL(name, version, thread, there, symbol) int symbol();
#include "generated_symbols.h"
#undef SYMBOL

#define SYMBOL(name, version, thread, there, symbol) \
    {#name, version, thread, there, (void (*)(void))symbol},
static const struct gp_symbol symbols[] = {
#include "generated_symbols.h"
};

GP_AT_LOAD register_lists(void) {
    gp_lists = (struct gp_lists){symbols, sizeof symbols / sizeof *symbols, MISSING_COUNT, missing_names,
                                 missing_calls};
}
