// The functions of CUDA that are missing here, and the table of all, which cuGetProcAddress looks up.
// By hand, around what generate.py writes: a row for each, with 1 where it is there.
#include "core.h"

#define PLACE_0(symbol) AT_##symbol,
#define PLACE_1(symbol)
#define SYMBOL(name, version, thread, there, symbol) PLACE_##there(symbol)
enum {
#include "generated_symbols.h"
    MISSING_COUNT
};
#undef SYMBOL

#define EXPORT_0(symbol) \
    GP_EXPORT int symbol(void) { return gp_missing(AT_##symbol); }
#define EXPORT_1(symbol) int symbol();
#define SYMBOL(name, version, thread, there, symbol) EXPORT_##there(symbol)
#include "generated_symbols.h"
#undef SYMBOL

#define NAME_0(symbol) #symbol,
#define NAME_1(symbol)
#define SYMBOL(name, version, thread, there, symbol) NAME_##there(symbol)
static const char *const missing_names[] = {
#include "generated_symbols.h"
};
#undef SYMBOL
static unsigned long missing_calls[MISSING_COUNT];

#define SYMBOL(name, version, thread, there, symbol) \
    {#name, version, thread, there, (void (*)(void))symbol},
static const struct gp_symbol symbols[] = {
#include "generated_symbols.h"
};

GP_AT_LOAD register_lists(void) {
    gp_lists = (struct gp_lists){symbols, sizeof symbols / sizeof *symbols, MISSING_COUNT, missing_names,
                                 missing_calls};
}
