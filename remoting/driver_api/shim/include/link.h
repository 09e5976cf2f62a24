// The byte stream between the shim and its worker, over TLS, TCP or a Unix socket.
#ifndef GP_LINK_H
#define GP_LINK_H

#include "base.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// One server of the lease.
struct gp_link {
    int server;   // counted from zero
    int socket;   // -1 where this process has no use for the server
    int devices;  // as gpupool run says
    char name[104], id[104];
    uint8_t session[16], certificate[32], ticket[32];
    bool encrypted;
    void *connection;  // of OpenSSL; NULL for none
    pthread_mutex_t lock;  // of the connection
};

// The beginning of a connection; all else of it zero at first.
struct gp_handshake {
    int64_t until;     // seconds of the monotonic clock
    const char *lost;  // why the lease is, if it is
    bool (*goes_on)(struct gp_handshake *handshake);  // asked while it waits
};

// tls.c
bool gp_tls_possible(void);
bool gp_tls_start(struct gp_link *link, const char *server_name, const uint8_t fingerprint[32],
                  const uint8_t ticket[32], struct gp_handshake *handshake);
// The worker's certificate and key, in DER.
struct gp_identity {
    const unsigned char *certificate, *key;
    size_t certificate_size, key_size;
};
// The other end of gp_tls_start, but for the byte that accepts.
bool gp_tls_accept(struct gp_link *link, const struct gp_identity *identity, const uint8_t ticket[32]);
void gp_tls_end(struct gp_link *link);     // the memory of its connection, which nobody uses any more
void gp_link_moved(struct gp_link *link);  // what was copied from elsewhere is in use from here on
// As recv and sendmsg with MSG_DONTWAIT: -1 with EAGAIN when it would block; gp_receive gives 0 at
// the end. Sent is at most the first of the parts where bytes are encrypted.
ssize_t gp_receive(struct gp_link *link, void *target, size_t size);
ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count);

// link.c
extern struct gp_link gp_links[];
extern int gp_agent_socket;
// The devices of the lease, as gpupool run names them.
extern struct gp_names gp_named[];
extern int gp_named_count;
// Take what gpupool run has to say; the reason when the lease is lost, else NULL.
const char *gp_ask_agent(int wait_ms);
void gp_tell_agent(const char *what);
// One more connection to a link's worker, by a number and a ticket of its own.
bool gp_link_again(const struct gp_link *link, const uint8_t id[16], const uint8_t ticket[32],
                   struct gp_link *made);

#endif
