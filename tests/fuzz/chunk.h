// The head of a chunk, as a peer may send it: most are near the part at hand. It comes behind wire/lanes.c.
#ifndef FUZZ_CHUNK_H
#define FUZZ_CHUNK_H

#include "input.h"

static struct chunk take_chunk(struct input *input, const struct gp_lanes *lanes) {
    unsigned byte = take_byte(input), place = take_byte(input);
    struct chunk head = {MAGIC, 1 + place % GP_LANE_CHUNK, lanes->stripe + (byte & 1),
                         (uint64_t)(place >> 4) * GP_LANE_CHUNK};
    if (byte & 2) head.size = GP_LANE_CHUNK;
    if (byte & 4) head.offset += lanes->start;
    if ((byte & 0xf0) == 0xf0) take_bytes(input, &head, sizeof head);
    if ((byte & 0xf8) == 0xe8) take_bytes(input, &head.size, sizeof head - sizeof head.magic);
    return head;
}

#endif
