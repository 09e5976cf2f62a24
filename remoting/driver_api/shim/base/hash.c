// SHA-256 (FIPS 180-4), HMAC-SHA-256 and HMAC-MD2 (RFC 1319, RFC 2104).
#include "hash.h"

#include <string.h>

struct sha256 {
    uint32_t state[8];
    uint8_t block[64];
    size_t used;
    uint64_t total;
};

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void sha256_block(struct sha256 *hash, const uint8_t *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *b = block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t low = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t high = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25);
        uint32_t first = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
        uint32_t a = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
        uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) hash->state[i] += s[i];
}

static void sha256_start(struct sha256 *hash) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, first, sizeof first);
}

static void sha256_add(struct sha256 *hash, const uint8_t *data, size_t size) {
    hash->total += size;
    for (size_t i = 0; i < size; i++) {
        hash->block[hash->used++] = data[i];
        if (hash->used == sizeof hash->block) {
            sha256_block(hash, hash->block);
            hash->used = 0;
        }
    }
}

static void sha256_finish(struct sha256 *hash, uint8_t result[32]) {
    uint64_t bits = hash->total * 8;
    uint8_t byte = 0x80;
    sha256_add(hash, &byte, 1);
    byte = 0;
    while (hash->used != 56) sha256_add(hash, &byte, 1);
    for (int i = 7; i >= 0; i--) {
        byte = (uint8_t)(bits >> (8 * i));
        sha256_add(hash, &byte, 1);
    }
    for (int i = 0; i < 32; i++) result[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void gp_sha256(const uint8_t *data, size_t size, uint8_t result[32]) {
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, data, size);
    sha256_finish(&hash, result);
}

void gp_hmac_sha256(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size,
                    uint8_t result[32]) {
    uint8_t pad[64], inner[32];
    struct sha256 hash;
    // No key of ours is longer than a block.
    for (size_t i = 0; i < sizeof pad; i++) pad[i] = 0x36 ^ (i < key_size ? key[i] : 0);
    sha256_start(&hash);
    sha256_add(&hash, pad, sizeof pad);
    sha256_add(&hash, data, size);
    sha256_finish(&hash, inner);
    for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36 ^ 0x5c;
    sha256_start(&hash);
    sha256_add(&hash, pad, sizeof pad);
    sha256_add(&hash, inner, sizeof inner);
    sha256_finish(&hash, result);
}

static const uint8_t PI[256] = {
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240,
    6, 19, 98, 167, 5, 243, 192, 199, 115, 140, 152, 147, 43, 217,
    188, 76, 130, 202, 30, 155, 87, 60, 253, 212, 224, 22, 103, 66,
    111, 24, 138, 23, 229, 18, 190, 78, 196, 214, 218, 158, 222, 73,
    160, 251, 245, 142, 187, 47, 238, 122, 169, 104, 121, 145, 21, 178,
    7, 63, 148, 194, 16, 137, 11, 34, 95, 33, 128, 127, 93, 154,
    90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3, 255, 25,
    48, 179, 72, 165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198,
    79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116,
    4, 241, 69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101,
    230, 45, 168, 2, 27, 96, 37, 173, 174, 176, 185, 246, 28, 70,
    97, 105, 52, 64, 126, 15, 85, 71, 163, 35, 221, 81, 175, 58,
    195, 92, 249, 206, 186, 197, 234, 38, 44, 83, 13, 110, 133, 40,
    132, 9, 211, 223, 205, 244, 65, 129, 77, 82, 106, 220, 55, 200,
    108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74, 120, 136,
    149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57,
    242, 239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117,
    75, 10, 49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51,
    159, 17, 131, 20,
};

struct md2 {
    uint8_t state[48], sum[16], block[16], last;
    size_t used;
};

static void md2_block(struct md2 *hash, const uint8_t *block, int summed) {
    for (int i = 0; i < 16; i++) {
        hash->state[16 + i] = block[i];
        hash->state[32 + i] = block[i] ^ hash->state[i];
    }
    uint8_t t = 0;
    for (int round = 0; round < 18; round++) {
        for (int i = 0; i < 48; i++) t = hash->state[i] ^= PI[t];
        t = (uint8_t)(t + round);
    }
    for (int i = 0; summed && i < 16; i++) hash->last = hash->sum[i] ^= PI[block[i] ^ hash->last];
}

static void md2_add(struct md2 *hash, const uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        hash->block[hash->used++] = data[i];
        if (hash->used == 16) {
            md2_block(hash, hash->block, 1);
            hash->used = 0;
        }
    }
}

static void md2_finish(struct md2 *hash, uint8_t result[16]) {
    uint8_t fill = (uint8_t)(16 - hash->used), sum[16];
    for (int count = fill; count > 0; count--) md2_add(hash, &fill, 1);
    memcpy(sum, hash->sum, sizeof sum);
    md2_block(hash, sum, 0);
    memcpy(result, hash->state, 16);
}

void gp_hmac_md2(const uint8_t key[16], const uint8_t *data, size_t size, uint8_t result[16]) {
    uint8_t pad[16], inner[16];
    struct md2 hash = {.used = 0};
    for (int i = 0; i < 16; i++) pad[i] = key[i] ^ 0x36;
    md2_add(&hash, pad, 16);
    md2_add(&hash, data, size);
    md2_finish(&hash, inner);
    memset(&hash, 0, sizeof hash);
    for (int i = 0; i < 16; i++) pad[i] = key[i] ^ 0x5c;
    md2_add(&hash, pad, 16);
    md2_add(&hash, inner, 16);
    md2_finish(&hash, result);
}
