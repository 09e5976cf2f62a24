// For targets that read no link: nothing comes by it, nothing can be sent, and there is no TLS.
#include "link.h"

ssize_t gp_receive(struct gp_link *link, void *target, size_t size) {
    (void)link, (void)target, (void)size;
    return 0;
}

ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count) {
    (void)link, (void)parts, (void)count;
    return -1;
}

bool gp_tls_possible(void) { return false; }
bool gp_tls_start(struct gp_link *link, const char *server_name, const uint8_t fingerprint[32],
                  const uint8_t ticket[32], struct gp_handshake *handshake) {
    (void)link, (void)server_name, (void)fingerprint, (void)ticket, (void)handshake;
    return false;
}
