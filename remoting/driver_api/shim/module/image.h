// Images of device code: cubin, fatbin, PTX, Tile IR.
#ifndef GP_IMAGE_H
#define GP_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#define GP_IMAGE_MAX (1ULL << 30)

struct gp_image {
    const unsigned char *bytes;
    uint64_t size;
    unsigned char *owned;  // to be freed
};

// Find the bytes of an image; architecture such as 90 drops what that device cannot use, 0 keeps
// everything.
bool gp_find_image(const void *data, int architecture, struct gp_image *image);

#endif
