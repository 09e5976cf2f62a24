// Answers about occupancy that are kept, until an attribute changes them.
#include "module.h"

#include <stdlib.h>

// cuBLASLt asks before every product with a bias, always the same; so answers are kept. A function's
// attributes change the answer, and forget all.
struct clusters {
    struct clusters *next;
    uint64_t value;
    int device;
    size_t size;
    unsigned char question[];
};

#define CLUSTER_SLOTS 1024
#define CLUSTERS_MAX 16384
static struct clusters *known_clusters[CLUSTER_SLOTS];
static unsigned clusters_kept;
static pthread_mutex_t clusters_lock = PTHREAD_MUTEX_INITIALIZER;

static struct clusters **cluster_slot(const void *question, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (size_t at = 0; at < size; at++) {
        hash = (hash ^ ((const unsigned char *)question)[at]) * 0x100000001b3u;
    }
    return &known_clusters[hash % CLUSTER_SLOTS];
}

bool gp_recall_clusters(const void *question, size_t size, int device, uint64_t *value) {
    pthread_mutex_lock(&clusters_lock);
    struct clusters *at = *cluster_slot(question, size);
    while (at != NULL && (at->device != device || at->size != size ||
                          memcmp(at->question, question, size) != 0)) {
        at = at->next;
    }
    if (at != NULL) *value = at->value;
    pthread_mutex_unlock(&clusters_lock);
    return at != NULL;
}

void gp_forget_clusters(void) {
    pthread_mutex_lock(&clusters_lock);
    for (int slot = 0; slot < CLUSTER_SLOTS && clusters_kept > 0; slot++) {
        while (known_clusters[slot] != NULL) {
            struct clusters *gone = known_clusters[slot];
            known_clusters[slot] = gone->next;
            free(gone);
        }
    }
    clusters_kept = 0;
    pthread_mutex_unlock(&clusters_lock);
}

void gp_keep_clusters(const void *question, size_t size, int device, uint64_t value) {
    struct clusters *made = malloc(sizeof *made + size);
    if (made == NULL) return;
    if (__atomic_load_n(&clusters_kept, __ATOMIC_RELAXED) >= CLUSTERS_MAX) gp_forget_clusters();
    made->value = value;
    made->device = device;
    made->size = size;
    memcpy(made->question, question, size);
    pthread_mutex_lock(&clusters_lock);
    struct clusters **slot = cluster_slot(question, size);
    made->next = *slot;
    *slot = made;
    clusters_kept++;
    pthread_mutex_unlock(&clusters_lock);
}

void gp_forget_occupancy(struct function *function) {
    struct occupancy *at = function->occupancies;
    function->occupancies = NULL;
    while (at != NULL) {
        struct occupancy *next = at->next;
        free(at);
        at = next;
    }
}
