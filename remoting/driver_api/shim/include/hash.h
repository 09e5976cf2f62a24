// SHA-256 (FIPS 180-4), HMAC-SHA-256 and HMAC-MD2 (RFC 1319, RFC 2104).
#ifndef GP_HASH_H
#define GP_HASH_H

#include <stddef.h>
#include <stdint.h>

void gp_hmac_sha256(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size,
                    uint8_t result[32]);
void gp_sha256(const uint8_t *data, size_t size, uint8_t result[32]);
void gp_hmac_md2(const uint8_t key[16], const uint8_t *data, size_t size, uint8_t result[16]);

#endif
