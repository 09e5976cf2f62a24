// Faults of memory that the library has closed to the program: each goes to the file that tracks
// the memory.
#define _GNU_SOURCE
#include "managed.h"

#include <errno.h>
#include <signal.h>

#define LAYERS 4

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;  // of changes of what follows
static struct sigaction previous[LAYERS];
static int layers;  // of handlers, each for one that came before it

static void handle(int layer, int number, siginfo_t *info, void *context) {
    int before = errno;
    uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
    bool repaired = info->si_code > 0 &&
                    (gp_hooks.mapped_fault(address) || gp_hooks.managed_fault(address, context));
    errno = before;
    if (repaired) return;
    const struct sigaction *next = &previous[layer];
    if (next->sa_flags & SA_SIGINFO) {
        next->sa_sigaction(number, info, context);
    } else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN) {
        next->sa_handler(number);
    } else {
        signal(number, SIG_DFL);  // and it faults again, for good
    }
}

#define ENTRY(layer)                                                                \
    static void on_fault_##layer(int number, siginfo_t *info, void *context) {      \
        handle(layer, number, info, context);                                       \
    }
ENTRY(0)
ENTRY(1)
ENTRY(2)
ENTRY(3)
static void (*const entries[LAYERS])(int, siginfo_t *, void *) = {on_fault_0, on_fault_1,
                                                                  on_fault_2, on_fault_3};

// Programs install handlers of their own, sometimes late, which may call the one before; ours has
// to come first. So each time that another one is found, an entry is put before it that passes on
// to just that one; fault_lock is held.
static void install(void) {
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) != 0) return;
    for (int layer = 0; layer < layers; layer++) {
        if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == entries[layer]) return;
    }
    if (layers == LAYERS) return;
    previous[layers] = now;
    // On the stack for signals only where somebody relies on that: it may be small.
    struct sigaction ours = {.sa_flags = SA_SIGINFO | (now.sa_flags & SA_ONSTACK)};
    ours.sa_sigaction = entries[layers++];
    sigemptyset(&ours.sa_mask);
    sigaction(SIGSEGV, &ours, NULL);
}

void gp_catch_faults(void) {
    pthread_mutex_lock(&fault_lock);
    install();
    pthread_mutex_unlock(&fault_lock);
}
