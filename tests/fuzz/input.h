// The bytes of one execution, taken from their front, and what the targets need of a line.
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct input {
    const uint8_t *at;
    size_t left;
};

// Zeros when there is nothing left.
static inline void take_bytes(struct input *input, void *target, size_t size) {
    size_t part = size < input->left ? size : input->left;
    memset(target, 0, size);
    if (part > 0) memcpy(target, input->at, part);
    input->at += part;
    input->left -= part;
}

static inline unsigned take_byte(struct input *input) {
    uint8_t byte;
    take_bytes(input, &byte, 1);
    return byte;
}

// A copy that ends where its memory ends, so that the sanitizer sees each read behind it.
static inline char *exact_text(const void *bytes, size_t size) {
    char *made = malloc(size + 1);
    if (made == NULL) abort();
    if (size > 0) memcpy(made, bytes, size);
    made[size] = '\0';
    return made;
}

// Use a value that came from the library, so that a sanitizer sees what it is made of.
static inline void use_bytes(const void *bytes, size_t size) {
    static volatile uint8_t sum;
    for (size_t at = 0; at < size; at++) sum = (uint8_t)(sum + ((const uint8_t *)bytes)[at]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#endif
