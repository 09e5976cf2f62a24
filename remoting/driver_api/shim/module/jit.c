// Options of the compiler in the server's driver (CUjit_option), and its logs.
#include "jit.h"

#define LOG_MAX 32768  // of each; the worker keeps no more

enum { INFO = 3, INFO_SIZE, ERROR, ERROR_SIZE };

// What the worker passes on: registers, threads, level, debug information, a verbose log, lines.
static const int passed_on[GP_JIT_WORDS] = {0, 1, 7, 11, 12, 13};

void gp_read_jit(unsigned count, const int *options, void **values, struct gp_jit *jit) {
    *jit = (struct gp_jit){0};
    for (unsigned at = 0; at < count && options != NULL && values != NULL; at++) {
        int option = options[at];
        if (option == INFO || option == ERROR) jit->logs[option == ERROR].text = values[at];
        if (option == INFO_SIZE || option == ERROR_SIZE) {
            jit->logs[option == ERROR_SIZE].room = (uint32_t)(uintptr_t)values[at];
            jit->logs[option == ERROR_SIZE].size = &values[at];
        }
        for (int which = 0; which < GP_JIT_WORDS; which++) {
            // One more than the value: zero is for what is not given.
            uint64_t value = (uint32_t)(uintptr_t)values[at];
            if (option == passed_on[which]) jit->words[which] = value + 1;
        }
    }
    for (int at = 0; at < 2; at++) {
        struct gp_log *log = &jit->logs[at];
        if (log->text == NULL || log->room == 0) log->text = NULL;
        if (log->text != NULL) *log->text = '\0';
        jit->wanted = jit->wanted || log->text != NULL;
    }
    for (int at = 0; at < GP_JIT_WORDS; at++) jit->wanted = jit->wanted || jit->words[at] != 0;
}

// Two texts, each behind its size.
void gp_write_jit(const struct gp_jit *jit, const unsigned char *body, size_t size) {
    for (int at = 0; at < 2; at++) {
        const struct gp_log *log = &jit->logs[at];
        uint32_t length = 0;
        if (size >= sizeof length) memcpy(&length, body, sizeof length);
        if (size < sizeof length || length > size - sizeof length || length > LOG_MAX) length = 0;
        size_t part = log->text == NULL ? 0 : length < log->room ? length : log->room - 1;
        if (log->text != NULL && part == 0) *log->text = '\0';
        if (part > 0) {
            memcpy(log->text, body + sizeof length, part);
            log->text[part] = '\0';
        }
        if (log->size != NULL) *log->size = (void *)(part > 0 ? part + 1 : 0);
        if (size < sizeof length) continue;
        body += sizeof length + length;
        size -= sizeof length + length;
    }
}
