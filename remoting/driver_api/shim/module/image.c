// The length of an image that comes without one, and the part of it that the device needs.
#define _GNU_SOURCE
#include "image.h"

#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1U
#define FATBIN_MAGIC 0xba55ed50U
#define KIND_PTX 1
#define KIND_ELF 2

struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *extra;
};

struct fatbin {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;  // of the entries, which follow the header
};

struct entry {
    uint16_t kind, version;
    uint32_t header, payload, unused, compressed, options, unused_too, architecture, bits;
};

static uint64_t elf_size(const unsigned char *at) {
    uint64_t programs, sections;
    uint16_t sizes[5];  // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum
    memcpy(&programs, at + 32, 8);
    memcpy(&sections, at + 40, 8);
    memcpy(sizes, at + 52, sizeof sizes);
    uint64_t end = programs + (uint64_t)sizes[1] * sizes[2];
    uint64_t last = sections + (uint64_t)sizes[3] * sizes[4];
    if (last > end) end = last;
    // Sections that lie behind the table of sections.
    for (unsigned index = 0; index < sizes[4] && sizes[3] >= 64; index++) {
        const unsigned char *section = at + sections + (uint64_t)index * sizes[3];
        uint32_t type;
        uint64_t offset, size;
        memcpy(&type, section + 4, 4);
        memcpy(&offset, section + 24, 8);
        memcpy(&size, section + 32, 8);
        if (type != 8 && offset + size > end) end = offset + size;  // 8: SHT_NOBITS
    }
    return end;
}

// Tile IR bytecode: the magic, a version of 4 bytes, then sections of an identifier byte (bit 7:
// an alignment follows), a length as LEB128 and, where aligned, padding; identifier 0 ends.
static uint64_t tile_size(const unsigned char *start) {
    uint64_t at = 12;
    for (int count = 0; count < 4096; count++) {
        unsigned char identifier = start[at++];
        if ((identifier & 0x7f) == 0) return at;
        uint64_t values[2] = {0, 1};
        for (int value = 0; value < ((identifier & 0x80) ? 2 : 1); value++) {
            uint64_t found = 0;
            int shift = 0;
            unsigned char byte;
            do {
                byte = start[at++];
                found |= (uint64_t)(byte & 0x7f) << shift;
                shift += 7;
            } while ((byte & 0x80) && shift < 63);
            values[value] = found;
        }
        if (values[1] == 0) return 0;
        at = (at + values[1] - 1) / values[1] * values[1] + values[0];
    }
    return 0;
}

// CUDA_FORCE_PTX_JIT: the server's driver, which is told as well, compiles what is there as text, and
// passes binaries over.
static bool text_is_wanted(void) {
    const char *value = getenv("CUDA_FORCE_PTX_JIT");
    if (value == NULL) value = getenv("CUDA_FORCE_JIT");
    return value != NULL && atoi(value) != 0;
}

// What a device needs of a fat binary.
struct choice {
    bool text;
    uint32_t best;  // the newest architecture of its binaries; 0 for none
};

static bool fits(const struct entry *entry, int architecture) {
    return entry->architecture / 10 == (uint32_t)architecture / 10 &&
           entry->architecture <= (uint32_t)architecture;
}

static bool is_chosen(const struct entry *entry, const struct choice *choice) {
    if (choice->text) return entry->kind == KIND_PTX;
    return entry->kind == KIND_ELF && choice->best != 0 && entry->architecture == choice->best;
}

// Read the entry at this offset, and move on to the next one; at the end of all, and where they are
// malformed, gives NULL.
static const unsigned char *next_entry(const unsigned char *start, uint64_t size, uint64_t *at,
                                       struct entry *entry, uint64_t *whole) {
    if (*at + sizeof *entry > size) return NULL;
    const unsigned char *found = start + *at;
    memcpy(entry, found, sizeof *entry);
    uint64_t payload = entry->payload > entry->compressed ? entry->payload : entry->compressed;
    *whole = entry->header + payload;
    if (entry->header < sizeof *entry || *whole > size - *at) return NULL;
    *at += *whole;
    return found;
}

// Keep the entries that a device of this architecture can use: the newest binaries for it, or text;
// or all when there is none. Says whether there is one.
static bool shorten(const unsigned char *start, uint64_t size, int architecture,
                    struct gp_image *image) {
    struct fatbin head;
    struct entry entry;
    struct choice choice = {.text = text_is_wanted()};
    uint64_t whole, kept = 0, at;
    const unsigned char *found;
    memcpy(&head, start, sizeof head);
    for (at = head.header; next_entry(start, size, &at, &entry, &whole) != NULL;) {
        bool usable = entry.kind == KIND_ELF && fits(&entry, architecture);
        if (usable && entry.architecture > choice.best) choice.best = entry.architecture;
    }
    if (at + sizeof entry <= size) return false;  // malformed from here on
    for (at = head.header; next_entry(start, size, &at, &entry, &whole) != NULL;) {
        if (is_chosen(&entry, &choice)) kept += whole;
    }
    if (kept == 0 || kept == size - head.header) return kept != 0;
    unsigned char *copy = malloc(head.header + kept);
    if (copy == NULL) return true;  // the whole does as well
    head.size = kept;
    memcpy(copy, start, head.header);
    memcpy(copy, &head, sizeof head);
    kept = head.header;
    for (at = head.header; (found = next_entry(start, size, &at, &entry, &whole)) != NULL;) {
        if (!is_chosen(&entry, &choice)) continue;
        memcpy(copy + kept, found, whole);
        kept += whole;
    }
    image->bytes = image->owned = copy;
    image->size = kept;
    return true;
}

bool gp_find_image(const void *data, int architecture, struct gp_image *image) {
    const unsigned char *at = data;
    uint32_t magic;
    bool linked = false;
    image->owned = NULL;
    memcpy(&magic, at, 4);
    if (magic == WRAPPER_MAGIC) {
        struct wrapper wrapper;
        memcpy(&wrapper, at, sizeof wrapper);
        // Made by a linker of device code: what it has linked, and the parts, of which CUDA would
        // link the PTX anew for a device that has no binary here.
        linked = wrapper.version == 2 && wrapper.extra != NULL;
        at = wrapper.data;
        memcpy(&magic, at, 4);
    }
    image->bytes = at;
    if (magic == FATBIN_MAGIC) {
        struct fatbin head;
        memcpy(&head, at, sizeof head);
        if (head.size > GP_IMAGE_MAX) return false;
        image->size = head.header + head.size;
        bool there = architecture && shorten(at, image->size, architecture, image);
        return there || !linked;
    }
    if (memcmp(at, "\177ELF", 4) == 0) {
        image->size = elf_size(at);
    } else if (memcmp(at, "\177TileIR\0", 8) == 0) {
        image->size = tile_size(at);
    } else {
        image->size = strlen((const char *)at) + 1;
    }
    return image->size > 0 && image->size <= GP_IMAGE_MAX;
}
