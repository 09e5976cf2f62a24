// TLS by the machine's own OpenSSL 3; without one, gpupool run encrypts for us.
//
// The worker's certificate is pinned by its hash, so neither its chain nor its name mean anything.
// OpenSSL allows one call at a time on a connection, so each is made under a lock on a socket that
// does not block, and all waiting happens outside of it.
#define _GNU_SOURCE
#include "wire.h"
#include "hash.h"
#include "link.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <limits.h>
#include <stdlib.h>

// Of openssl/ssl.h and openssl/tls1.h, version 3; all part of its stable interface.
enum {
    VERIFY_NONE = 0,
    ERROR_WANT_READ = 2,
    ERROR_WANT_WRITE = 3,
    CTRL_MODE = 33,
    CTRL_SET_READ_AHEAD = 41,
    CTRL_SET_HOSTNAME = 55,
    CTRL_SET_MIN_VERSION = 123,
    KEY_EC = 408,
    MODE_PARTIAL_MOVING_WRITES = 1 | 2,
    VERSION_1_3 = 0x0304,
    BIO_CTRL_FLUSH = 11,
    BIO_SOURCE_SINK = 0x0400,
    BIO_RETRY_READ = 0x01 | 0x08,
    BIO_RETRY_WRITE = 0x02 | 0x08,
    BIO_RETRY_ALL = 0x0f,
};

// Several records of 16 KiB come with one system call, where OpenSSL alone makes two for each.
#define READ_AHEAD_SIZE (128 * 1024)
// The first is the fastest that TLS 1.3 has, and as safe; all others of OpenSSL's behind it.
#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

static struct {
    void *(*lib_ctx_new)(void);
    const void *(*client)(void);
    const void *(*server)(void);
    void *(*ctx_new)(void *lib_ctx, const char *properties, const void *method);
    long (*ctx_ctrl)(void *ctx, int command, long value, void *pointer);
    void (*ctx_set_read_size)(void *ctx, size_t size);
    int (*ctx_set_ciphers)(void *ctx, const char *names);
    void (*ctx_set_verify)(void *ctx, int mode, void *callback);
    void *(*new)(void *ctx);
    long (*ctrl)(void *ssl, int command, long value, void *pointer);
    void (*set_bio)(void *ssl, void *read, void *write);
    void *(*get_bio)(const void *ssl);
    int (*connect)(void *ssl);
    int (*accept)(void *ssl);
    int (*use_certificate)(void *ctx, int size, const unsigned char *der);
    int (*use_key)(int kind, void *ctx, const unsigned char *der, long size);
    int (*set_tickets)(void *ctx, size_t count);
    void *(*peer_certificate)(const void *ssl);
    int (*read)(void *ssl, void *bytes, int size);
    int (*write)(void *ssl, const void *bytes, int size);
    int (*get_error)(const void *ssl, int result);
    void (*clear_errors)(void);
    int (*certificate_der)(const void *certificate, unsigned char **bytes);
    void *(*bio_new_method)(int type, const char *name);
    int (*bio_set_read)(void *method, int (*read)(void *bio, char *bytes, int size));
    int (*bio_set_write)(void *method, int (*write)(void *bio, const char *bytes, int size));
    int (*bio_set_ctrl)(void *method, long (*ctrl)(void *, int, long, void *));
    void *(*bio_new)(const void *method);
    void (*bio_set_init)(void *bio, int on);
    void (*bio_set_flags)(void *bio, int flags);
    void (*bio_clear_flags)(void *bio, int flags);
    void (*free)(void *ssl);
    void (*ctx_free)(void *ctx);
    void (*bio_set_data)(void *bio, void *data);
    void *(*bio_get_data)(void *bio);
} openssl;

static bool find_openssl(void) {
    const char *name = getenv("GPUPOOL_LIBSSL");
    void *library = dlopen(name != NULL ? name : "libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return false;
    const struct {
        const char *name;
        void *target;
    } wanted[] = {
        {"OSSL_LIB_CTX_new", &openssl.lib_ctx_new},
        {"TLS_client_method", &openssl.client},
        {"TLS_server_method", &openssl.server},
        {"SSL_CTX_new_ex", &openssl.ctx_new},
        {"SSL_CTX_ctrl", &openssl.ctx_ctrl},
        {"SSL_CTX_set_default_read_buffer_len", &openssl.ctx_set_read_size},
        {"SSL_CTX_set_ciphersuites", &openssl.ctx_set_ciphers},
        {"SSL_CTX_set_verify", &openssl.ctx_set_verify},
        {"SSL_new", &openssl.new},
        {"SSL_ctrl", &openssl.ctrl},
        {"SSL_free", &openssl.free},
        {"SSL_CTX_free", &openssl.ctx_free},
        {"SSL_set_bio", &openssl.set_bio},
        {"SSL_get_rbio", &openssl.get_bio},
        {"SSL_connect", &openssl.connect},
        {"SSL_accept", &openssl.accept},
        {"SSL_CTX_use_certificate_ASN1", &openssl.use_certificate},
        {"SSL_CTX_use_PrivateKey_ASN1", &openssl.use_key},
        {"SSL_CTX_set_num_tickets", &openssl.set_tickets},
        {"SSL_get1_peer_certificate", &openssl.peer_certificate},
        {"SSL_read", &openssl.read},
        {"SSL_write", &openssl.write},
        {"SSL_get_error", &openssl.get_error},
        {"ERR_clear_error", &openssl.clear_errors},
        {"i2d_X509", &openssl.certificate_der},
        {"BIO_meth_new", &openssl.bio_new_method},
        {"BIO_meth_set_read", &openssl.bio_set_read},
        {"BIO_meth_set_write", &openssl.bio_set_write},
        {"BIO_meth_set_ctrl", &openssl.bio_set_ctrl},
        {"BIO_new", &openssl.bio_new},
        {"BIO_set_init", &openssl.bio_set_init},
        {"BIO_set_flags", &openssl.bio_set_flags},
        {"BIO_clear_flags", &openssl.bio_clear_flags},
        {"BIO_set_data", &openssl.bio_set_data},
        {"BIO_get_data", &openssl.bio_get_data},
    };
    for (size_t at = 0; at < sizeof wanted / sizeof *wanted; at++) {
        void *found = dlsym(library, wanted[at].name);  // its libcrypto is searched as well
        if (found == NULL) return false;
        memcpy(wanted[at].target, &found, sizeof found);
    }
    return true;
}

bool gp_tls_possible(void) {
    static int known = -1;
    if (known < 0) known = find_openssl();
    return known;
}

// Below TLS: OpenSSL's own sockets raise SIGPIPE, which would end the program.

static int bio_read(void *bio, char *bytes, int size) {
    openssl.bio_clear_flags(bio, BIO_RETRY_ALL);
    const struct gp_link *link = openssl.bio_get_data(bio);
    ssize_t got = recv(link->socket, bytes, (size_t)size, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        openssl.bio_set_flags(bio, BIO_RETRY_READ);
    }
    return (int)got;
}

static int bio_write(void *bio, const char *bytes, int size) {
    openssl.bio_clear_flags(bio, BIO_RETRY_ALL);
    const struct gp_link *link = openssl.bio_get_data(bio);
    ssize_t sent = send(link->socket, bytes, (size_t)size, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        openssl.bio_set_flags(bio, BIO_RETRY_WRITE);
    }
    return (int)sent;
}

static long bio_ctrl(void *bio, int command, long value, void *pointer) {
    (void)bio, (void)value, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static void *make_method(void) {
    void *made = openssl.bio_new_method(BIO_SOURCE_SINK | 100, "gpupool");
    if (made == NULL) return NULL;
    openssl.bio_set_read(made, bio_read);
    openssl.bio_set_write(made, bio_write);
    openssl.bio_set_ctrl(made, bio_ctrl);
    return made;
}

// Of all connections. A library context of its own outlives what OpenSSL frees at exit, when
// runtimes of CUDA still call us.
static void *own, *method;

static bool prepare(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (own == NULL) own = openssl.lib_ctx_new();
    if (method == NULL) method = make_method();
    pthread_mutex_unlock(&lock);
    return own != NULL && method != NULL;
}

static void *make_bio(struct gp_link *link) {
    void *bio = openssl.bio_new(method);
    if (bio == NULL) return NULL;
    openssl.bio_set_data(bio, link);
    openssl.bio_set_init(bio, 1);
    return bio;
}

static bool pinned(const void *connection, const uint8_t fingerprint[32]) {
    const void *certificate = openssl.peer_certificate(connection);
    unsigned char *der = NULL;
    int size = certificate == NULL ? 0 : openssl.certificate_der(certificate, &der);
    if (size <= 0) return false;
    uint8_t found[32];
    gp_sha256(der, (size_t)size, found);
    return memcmp(found, fingerprint, sizeof found) == 0;
}

// Whether a call has only waited in vain for the other end.
static bool waits(const void *connection, int result) {
    return result <= 0 && openssl.get_error(connection, result) == ERROR_WANT_READ;
}

static void *make_context(const void *side) {
    void *ctx = prepare() ? openssl.ctx_new(own, NULL, side) : NULL;
    if (ctx == NULL) return NULL;
    openssl.ctx_ctrl(ctx, CTRL_SET_MIN_VERSION, VERSION_1_3, NULL);
    openssl.ctx_ctrl(ctx, CTRL_MODE, MODE_PARTIAL_MOVING_WRITES, NULL);
    openssl.ctx_ctrl(ctx, CTRL_SET_READ_AHEAD, 1, NULL);
    openssl.ctx_set_read_size(ctx, READ_AHEAD_SIZE);
    openssl.ctx_set_ciphers(ctx, CIPHERS);  // where it refuses, its own order holds
    openssl.ctx_set_verify(ctx, VERIFY_NONE, NULL);
    return ctx;
}

static void *make_connection(struct gp_link *link, void *ctx) {
    if (ctx == NULL) return NULL;
    void *connection = openssl.new(ctx), *bio = make_bio(link);
    if (connection == NULL || bio == NULL) return NULL;
    openssl.set_bio(connection, bio, bio);
    openssl.clear_errors();
    return connection;
}

static bool stop_blocking(const struct gp_link *link) {
    return fcntl(link->socket, F_SETFL, fcntl(link->socket, F_GETFL) | O_NONBLOCK) == 0;
}

void gp_link_moved(struct gp_link *link) {
    pthread_mutex_init(&link->lock, NULL);
    if (link->connection != NULL) openssl.bio_set_data(openssl.get_bio(link->connection), link);
}

static bool accepts(void *connection, const uint8_t ticket[32]) {
    uint8_t found[32], different = 0;
    if (openssl.accept(connection) != 1) return false;
    if (openssl.read(connection, found, sizeof found) != sizeof found) return false;
    for (int at = 0; at < 32; at++) different |= found[at] ^ ticket[at];
    return different == 0;
}

bool gp_tls_accept(struct gp_link *link, const struct gp_identity *identity, const uint8_t ticket[32]) {
    void *ctx = make_context(openssl.server()), *connection = NULL;
    if (ctx == NULL) return false;
    if (openssl.set_tickets(ctx, 0) == 1 &&
        openssl.use_certificate(ctx, (int)identity->certificate_size, identity->certificate) == 1 &&
        openssl.use_key(KEY_EC, ctx, identity->key, (long)identity->key_size) == 1) {
        connection = make_connection(link, ctx);
    }
    openssl.ctx_free(ctx);  // the connection keeps it
    if (connection == NULL) return false;
    if (!accepts(connection, ticket) || !stop_blocking(link)) {
        openssl.free(connection);
        return false;
    }
    link->connection = connection;
    return true;
}

void gp_tls_end(struct gp_link *link) {
    if (link->connection != NULL) openssl.free(link->connection);
    link->connection = NULL;
}

bool gp_tls_start(struct gp_link *link, const char *server_name, const uint8_t fingerprint[32],
                  const uint8_t ticket[32], struct gp_handshake *handshake) {
    void *connection = make_connection(link, make_context(openssl.client()));
    if (connection == NULL) return false;
    openssl.ctrl(connection, CTRL_SET_HOSTNAME, 0, (void *)(uintptr_t)server_name);
    uint8_t accepted = 0;
    int result;
    do result = openssl.connect(connection);
    while (waits(connection, result) && handshake->goes_on(handshake));
    if (result != 1 || !pinned(connection, fingerprint)) return false;
    if (openssl.write(connection, ticket, 32) != 32) return false;
    do result = openssl.read(connection, &accepted, 1);
    while (waits(connection, result) && handshake->goes_on(handshake));
    if (result != 1 || accepted != 1) return false;
    link->connection = connection;
    return stop_blocking(link);
}

// As recv and send with MSG_DONTWAIT would. Reading wants room in the socket, and writing wants bytes,
// only where the other end has begun to change keys. Ours never does, and the wait for the usual
// would end at once, again and again: so that is the end.
static ssize_t outcome(const void *connection, int result, int usual) {
    if (result > 0) return result;
    if (openssl.get_error(connection, result) != usual) return 0;
    errno = EAGAIN;
    return -1;
}

ssize_t gp_receive(struct gp_link *link, void *target, size_t size) {
    void *connection = link->connection;
    if (connection == NULL) return recv(link->socket, target, size, MSG_DONTWAIT);
    pthread_mutex_lock(&link->lock);
    openssl.clear_errors();
    int most = size > INT_MAX ? INT_MAX : (int)size;
    ssize_t got = outcome(connection, openssl.read(connection, target, most), ERROR_WANT_READ);
    pthread_mutex_unlock(&link->lock);
    return got;
}

ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count) {
    void *connection = link->connection;
    if (connection == NULL) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        return sendmsg(link->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    size_t size = parts->iov_len > INT_MAX ? INT_MAX : parts->iov_len;
    pthread_mutex_lock(&link->lock);
    openssl.clear_errors();
    int result = openssl.write(connection, parts->iov_base, (int)size);
    ssize_t sent = outcome(connection, result, ERROR_WANT_WRITE);
    pthread_mutex_unlock(&link->lock);
    if (sent == 0) {
        errno = EPIPE;
        sent = -1;
    }
    return sent;
}
