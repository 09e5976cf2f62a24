// Messages to the user, variables of the environment, and threads of the library's own.
#define _GNU_SOURCE
#include "base.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int verbosity = -1;

int gp_verbosity(void) {
    int known = __atomic_load_n(&verbosity, __ATOMIC_RELAXED);
    if (known < 0) {
        const char *text = getenv("GPUPOOL_VERBOSE");
        known = text == NULL ? 0 : atoi(text);
        __atomic_store_n(&verbosity, known, __ATOMIC_RELAXED);
    }
    return known;
}

bool gp_verbose(void) { return gp_verbosity() != 0; }

bool gp_launches_block(void) {
    static int known = -1;
    if (known < 0) {
        const char *text = getenv("CUDA_LAUNCH_BLOCKING");
        known = text != NULL && atoi(text) != 0;
    }
    return known != 0;
}

void gp_make_visible(char *text, size_t size) {
    for (size_t at = 0; at < size; at++) {
        unsigned char byte = (unsigned char)text[at];
        bool second = at > 0 && (unsigned char)text[at - 1] == 0xc2;  // U+0080 to U+009F in UTF-8
        bool control = byte < 0x20 || byte == 0x7f || (second && byte >= 0x80 && byte < 0xa0);
        if (control && byte != '\n' && byte != '\t' && byte != '\r') text[at] = '?';
        if (second && text[at] == '?') text[at - 1] = '?';
    }
}

void gp_say(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gp_make_visible(text, strlen(text));
    fprintf(stderr, "gpupool: %s\n", text);
}

int gp_start_thread(void *(*run)(void *), void *argument, int signal_taken) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t masked, before;
    sigfillset(&masked);
    if (signal_taken) sigdelset(&masked, signal_taken);
    pthread_sigmask(SIG_SETMASK, &masked, &before);
    int failed = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}
