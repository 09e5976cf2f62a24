// The merge of two sides' writes to the same memory: finds the new bytes of one side, and puts them
// between those of the other. A mask has one bit for each byte.
#include "hostmem.h"

static inline uint64_t word_at(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

size_t gp_find_new(const unsigned char *fresh, const unsigned char *known, unsigned char *mask,
                   size_t size) {
    size_t count = 0;
    memset(mask, 0, (size + 7) / 8);
    for (size_t at = 0; at < size; at += 8) {
        if (size - at >= 8 && word_at(fresh + at) == word_at(known + at)) continue;
        size_t end = size - at < 8 ? size : at + 8;
        for (size_t one = at; one < end; one++) {
            if (fresh[one] == known[one]) continue;
            mask[at / 8] |= (unsigned char)(1u << (one - at));
            count++;
        }
    }
    return count;
}

// Bytes that another thread of the program writes beside them meanwhile stay, and readers see whole
// words.
static void merge_word(uint64_t *target, uint64_t fresh, unsigned char mask) {
    uint64_t which = 0;
    for (unsigned byte = 0; byte < 8; byte++) {
        if (mask >> byte & 1) which |= 0xffULL << (8 * byte);
    }
    uint64_t before = __atomic_load_n(target, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(target, &before, (before & ~which) | (fresh & which), true,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

void gp_merge(unsigned char *target, const unsigned char *fresh, const unsigned char *mask,
              size_t size) {
    bool aligned = ((uintptr_t)target & 7) == 0;
    for (size_t at = 0; at < size; at += 8) {
        unsigned char which = mask[at / 8];
        if (which == 0) continue;
        if (aligned && size - at >= 8) {
            merge_word((uint64_t *)(void *)(target + at), word_at(fresh + at), which);
            continue;
        }
        for (size_t one = at; one < size && one < at + 8; one++) {
            if (which >> (one - at) & 1) target[one] = fresh[one];
        }
    }
}
