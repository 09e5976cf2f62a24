// What tls.c uses of OpenSSL and of a socket, played: what comes, waits and failures are the input's.
//
// Each object is a piece of memory of its own, so a sanitizer sees each use of one that has ended. The player
// aborts where OpenSSL is used as it may not be, or where somebody waits for what would not help.
#ifndef FUZZ_OPENSSL_H
#define FUZZ_OPENSSL_H

#include "input.h"
#include "link.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

// Of OpenSSL's headers.
enum { SSL_FAILED = 1, SSL_WAITS_TO_READ = 2, SSL_WAITS_TO_WRITE = 3, SSL_BROKE = 5, SSL_ENDED = 6 };
enum { BIO_READS = 1, BIO_WRITES = 2, BIO_AGAIN = 8 };

#define RECORD_MAX (16 * 1024)
#define OBJECTS_MAX 64
#define SOCKET 1000

static const unsigned char play_certificate_bytes[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

struct play_method {
    int (*read)(void *bio, char *bytes, int size);
    int (*write)(void *bio, const char *bytes, int size);
};

struct play_bio {
    const struct play_method *method;
    struct gp_link *link;
    int flags;
};

struct play_context {
    unsigned users;
};

struct play_connection {
    struct play_context *context;
    struct play_bio *bio;
    int error;                      // of the last call
    bool open;                      // the handshake is over
    size_t again;                   // bytes that the next call must write first, and how they begin
    unsigned char again_bytes[16];
};

static struct {
    struct input input;
    void *objects[OBJECTS_MAX];
    // What the other end says: how many bytes of so many were put there.
    size_t (*says)(unsigned char *bytes, size_t size);
    void (*hears)(const unsigned char *bytes, size_t size);
    short wanted;         // what a wait would be for
    unsigned waits;       // that there were
    bool over;            // a connection gave what ends it
    bool failed;          // errors are noted that nobody has cleared
    bool blocks, closed;  // the socket
    bool shown;           // the certificate that is expected
    int64_t now_ns;
} play;

static bool is_over(void) { return play.input.left == 0; }

// --- objects ---------------------------------------------------------------------------------------------------

static void *make(size_t size) {
    for (unsigned at = 0; at < OBJECTS_MAX; at++) {
        if (play.objects[at] != NULL) continue;
        play.objects[at] = calloc(1, size);
        if (play.objects[at] == NULL) abort();
        return play.objects[at];
    }
    abort();
}

static void drop(const void *object) {
    for (unsigned at = 0; at < OBJECTS_MAX; at++) {
        if (play.objects[at] != object) continue;
        free(play.objects[at]);
        play.objects[at] = NULL;
        return;
    }
    abort();
}

static unsigned count_objects(void) {
    unsigned count = 0;
    for (unsigned at = 0; at < OBJECTS_MAX; at++) count += play.objects[at] != NULL;
    return count;
}

static void drop_all(void) {
    for (unsigned at = 0; at < OBJECTS_MAX; at++) free(play.objects[at]);
    memset(play.objects, 0, sizeof play.objects);
}

// --- the socket ------------------------------------------------------------------------------------------------

static int fail(int number, short wanted) {
    errno = number;
    play.wanted = wanted;
    return -1;
}

// A failure of the socket, or 0: there is none.
static int socket_fails(short wanted) {
    if (is_over()) return fail(ECONNRESET, wanted);
    unsigned byte = take_byte(&play.input);
    return byte < 192 ? 0 : fail(byte < 224 ? EAGAIN : byte < 248 ? EINTR : ECONNRESET, wanted);
}

static void know_socket(int fd) {
    if (fd != SOCKET || play.closed) abort();
}

static ssize_t play_recv(int fd, void *target, size_t size, int flags) {
    (void)flags;
    know_socket(fd);
    if (is_over()) return 0;
    if (socket_fails(POLLIN)) return -1;
    size_t part = play.says((unsigned char *)target, size);
    if (part > size) abort();
    return (ssize_t)part;
}

static void hear(const void *bytes, size_t size) {
    static unsigned char heard[4 * RECORD_MAX];
    if (size > sizeof heard) abort();
    memcpy(heard, bytes, size);  // a sanitizer looks at all of them
    if (play.hears != NULL) play.hears((const unsigned char *)bytes, size);
}

// How many bytes of so many are sent.
static size_t some(size_t size) {
    unsigned byte = take_byte(&play.input);
    size_t most = byte < 128 ? RECORD_MAX : byte & 1 ? 1 : 1 + byte;
    return size < most ? size : most;
}

static ssize_t play_send(int fd, const void *bytes, size_t size, int flags) {
    know_socket(fd);
    if ((flags & MSG_NOSIGNAL) == 0) abort();  // a signal would end the program
    if (socket_fails(POLLOUT)) return -1;
    size_t part = some(size);
    hear(bytes, part);
    return (ssize_t)part;
}

static ssize_t play_sendmsg(int fd, const struct msghdr *message, int flags) {
    if ((flags & MSG_DONTWAIT) == 0 || message->msg_iovlen == 0) abort();
    return play_send(fd, message->msg_iov->iov_base, message->msg_iov->iov_len, flags);
}

static int play_fcntl(int fd, int command, ...) {
    know_socket(fd);
    if (command == F_SETFL) play.blocks = false;
    return 0;
}

static int play_close(int fd) {
    know_socket(fd);
    play.closed = true;
    return 0;
}

static int play_getsockopt(int fd, int level, int name, void *value, socklen_t *size) {
    (void)fd;
    if (level != IPPROTO_TCP || name != TCP_INFO || *size != sizeof(struct tcp_info)) abort();
    struct tcp_info info = {.tcpi_unacked = 1, .tcpi_retransmits = 1};
    info.tcpi_last_ack_recv = 20 * take_byte(&play.input);
    memcpy(value, &info, sizeof info);
    return 0;
}

static int play_clock(clockid_t clock, struct timespec *time) {
    (void)clock;
    play.now_ns += is_over() ? 1000000000 : 1 + 8 * (int64_t)take_byte(&play.input);
    *time = (struct timespec){play.now_ns / 1000000000, play.now_ns % 1000000000};
    return 0;
}

static int play_poll(struct pollfd *entry, nfds_t count, int wait_ms) {
    if (count != 1 || entry->fd != SOCKET) abort();
    // Else it would never end, or end at once again and again.
    if (entry->events != play.wanted) abort();
    play.waits++;
    unsigned byte = is_over() ? 0 : take_byte(&play.input);
    if (byte < 224) return 1;
    if (byte < 240 && wait_ms >= 0) return 0;
    return fail(EINTR, play.wanted);
}

// --- OpenSSL ---------------------------------------------------------------------------------------------------

static void *play_lib(void) {
    static char own;
    return &own;
}

static const void *play_method(void) { return play_lib(); }

static void *play_ctx_new(void *lib, const char *properties, const void *method) {
    (void)properties;
    if (lib != play_lib() || method != play_lib()) abort();
    struct play_context *made = make(sizeof *made);
    made->users = 1;
    return made;
}

static long play_ctx_ctrl(void *ctx, int command, long value, void *pointer) {
    (void)ctx, (void)command, (void)value, (void)pointer;
    return 1;
}

static void play_ctx_size(void *ctx, size_t size) { (void)ctx, (void)size; }

static int play_ctx_text(void *ctx, const char *text) {
    (void)ctx, (void)text;
    return 1;
}

static void play_ctx_verify(void *ctx, int mode, void *callback) { (void)ctx, (void)mode, (void)callback; }

static int play_use_certificate(void *ctx, int size, const unsigned char *der) {
    (void)ctx;
    use_bytes(der, (size_t)size);
    return 1;
}

static int play_use_key(int kind, void *ctx, const unsigned char *der, long size) {
    (void)kind;
    return play_use_certificate(ctx, (int)size, der);
}

static int play_tickets(void *ctx, size_t count) {
    (void)ctx, (void)count;
    return 1;
}

static void play_ctx_free(void *one) {
    struct play_context *context = one;
    if (--context->users == 0) drop(context);
}

static void *play_new(void *ctx) {
    struct play_connection *made = make(sizeof *made);
    made->context = ctx;
    made->context->users++;
    return made;
}

static void play_free(void *one) {
    struct play_connection *connection = one;
    drop(connection->bio);
    play_ctx_free(connection->context);
    drop(connection);
}

static void play_set_bio(void *one, void *read, void *write) {
    struct play_connection *connection = one;
    if (read != write || connection->bio != NULL) abort();
    connection->bio = read;
}

static void *play_get_bio(const void *one) { return ((const struct play_connection *)one)->bio; }

static void *play_bio_method(int type, const char *name) {
    (void)type, (void)name;
    static struct play_method made;
    static bool known;
    if (known) abort();  // it would stay in memory for each connection
    known = true;
    return &made;
}

static int play_bio_read(void *method, int (*read)(void *, char *, int)) {
    ((struct play_method *)method)->read = read;
    return 1;
}

static int play_bio_write(void *method, int (*write)(void *, const char *, int)) {
    ((struct play_method *)method)->write = write;
    return 1;
}

static int play_bio_ctrl(void *method, long (*ctrl)(void *, int, long, void *)) {
    (void)method;
    return ctrl(NULL, 11, 0, NULL) == 1;  // a flush
}

static void *play_bio_new(const void *method) {
    struct play_bio *made = make(sizeof *made);
    made->method = method;
    return made;
}

static void play_bio_init(void *bio, int on) { (void)bio, (void)on; }
static void play_bio_flags(void *bio, int flags) { ((struct play_bio *)bio)->flags |= flags; }
static void play_bio_clear(void *bio, int flags) { ((struct play_bio *)bio)->flags &= ~flags; }
static void play_bio_set(void *bio, void *link) { ((struct play_bio *)bio)->link = link; }
static void *play_bio_get(void *bio) { return ((struct play_bio *)bio)->link; }
static void play_clear(void) { play.failed = false; }

// Whoever has the connection makes one call at a time, of a socket that does not block.
static struct play_connection *in_use(void *one) {
    struct play_connection *connection = one;
    struct gp_link *link = connection->bio->link;
    if (play.failed) abort();  // OpenSSL would take older errors for those of this call
    if (link->connection == NULL) return connection;
    if (link->connection != one || play.blocks || pthread_mutex_trylock(&link->lock) == 0) abort();
    return connection;
}

static size_t some_noise(unsigned char *bytes, size_t size) {
    take_bytes(&play.input, bytes, 1);
    return size;
}

// It reads from the socket or writes to it, below what it gives.
static void touch(const struct play_connection *connection) {
    char bytes[64];
    memset(bytes, 0, sizeof bytes);
    unsigned byte = take_byte(&play.input);
    if (byte < 192) return;
    struct play_bio *bio = connection->bio;
    size_t (*says)(unsigned char *, size_t) = play.says;
    void (*hears)(const unsigned char *, size_t) = play.hears;
    play.says = some_noise;
    play.hears = NULL;
    bio->flags = BIO_READS | BIO_WRITES | BIO_AGAIN;
    errno = 0;
    int size = 1 + (int)byte % 64, way = byte & 1 ? BIO_READS : BIO_WRITES;
    int got = way == BIO_READS ? bio->method->read(bio, bytes, size) : bio->method->write(bio, bytes, size);
    bool again = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (bio->flags != (again ? way | BIO_AGAIN : 0)) abort();
    play.says = says;
    play.hears = hears;
}

// A call that gave nothing; `usual` is what it may wait for.
static int give_up(struct play_connection *connection, int usual) {
    static const uint8_t why[] = {SSL_WAITS_TO_READ, SSL_WAITS_TO_WRITE, SSL_FAILED, SSL_BROKE, SSL_ENDED};
    unsigned byte = take_byte(&play.input);
    connection->error = is_over() ? SSL_ENDED : byte < 192 ? usual : why[byte % sizeof why];
    play.wanted = connection->error == SSL_WAITS_TO_READ ? POLLIN : POLLOUT;
    play.over |= connection->error != usual;
    play.failed = connection->error == SSL_FAILED;
    return connection->error == SSL_ENDED ? 0 : -1;
}

static int play_shake(void *one) {
    struct play_connection *connection = in_use(one);
    touch(connection);
    if (is_over() || take_byte(&play.input) >= 224) return give_up(connection, SSL_WAITS_TO_READ);
    connection->open = true;
    return 1;
}

static int play_read(void *one, void *bytes, int size) {
    struct play_connection *connection = in_use(one);
    if (size <= 0 || !connection->open) abort();
    touch(connection);
    if (is_over() || take_byte(&play.input) >= 160) return give_up(connection, SSL_WAITS_TO_READ);
    size_t part = play.says(bytes, size < RECORD_MAX ? (size_t)size : RECORD_MAX);
    if (part == 0) return give_up(connection, SSL_WAITS_TO_READ);
    return (int)part;
}

// A call that was to be made again begins with the same bytes; they may lie elsewhere.
static int play_write(void *one, const void *bytes, int size) {
    struct play_connection *connection = in_use(one);
    if (size <= 0 || !connection->open) abort();
    size_t again = connection->again, known = sizeof connection->again_bytes;
    bool others = again > (size_t)size || memcmp(bytes, connection->again_bytes, again < known ? again : known);
    if (others && !play.over) abort();
    if (others) again = 0;
    touch(connection);
    size_t part = again > 0 ? again : some((size_t)size);
    if (is_over() || take_byte(&play.input) >= 160) {
        int result = give_up(connection, SSL_WAITS_TO_WRITE);
        if (connection->error != SSL_WAITS_TO_WRITE) return result;
        connection->again = part;
        memcpy(connection->again_bytes, bytes, part < known ? part : known);
        return result;
    }
    connection->again = 0;
    hear(bytes, part);
    return (int)part;
}

static int play_error(const void *one, int result) {
    if (result > 0) abort();
    return ((const struct play_connection *)one)->error;
}

static void *play_certificate(const void *one) {
    (void)one;
    return take_byte(&play.input) < 248 ? play_lib() : NULL;
}

static int play_der(const void *certificate, unsigned char **bytes) {
    if (certificate != play_lib()) abort();
    unsigned byte = take_byte(&play.input);
    if (byte >= 240) return byte & 1 ? 0 : -1;
    unsigned char *made = make(sizeof play_certificate_bytes);
    memcpy(made, play_certificate_bytes, sizeof play_certificate_bytes);
    if (byte >= 192) made[byte % sizeof play_certificate_bytes] ^= 1;
    play.shown = byte < 192;
    *bytes = made;
    return sizeof play_certificate_bytes;
}

#define PLAYS(name, function) {name, (void *)(function)}
static const struct {
    const char *name;
    void *function;
} plays[] = {
    PLAYS("OSSL_LIB_CTX_new", play_lib),
    PLAYS("TLS_client_method", play_method),
    PLAYS("TLS_server_method", play_method),
    PLAYS("SSL_CTX_new_ex", play_ctx_new),
    PLAYS("SSL_CTX_ctrl", play_ctx_ctrl),
    PLAYS("SSL_CTX_set_default_read_buffer_len", play_ctx_size),
    PLAYS("SSL_CTX_set_ciphersuites", play_ctx_text),
    PLAYS("SSL_CTX_set_verify", play_ctx_verify),
    PLAYS("SSL_new", play_new),
    PLAYS("SSL_ctrl", play_ctx_ctrl),
    PLAYS("SSL_free", play_free),
    PLAYS("SSL_CTX_free", play_ctx_free),
    PLAYS("SSL_set_bio", play_set_bio),
    PLAYS("SSL_get_rbio", play_get_bio),
    PLAYS("SSL_connect", play_shake),
    PLAYS("SSL_accept", play_shake),
    PLAYS("SSL_CTX_use_certificate_ASN1", play_use_certificate),
    PLAYS("SSL_CTX_use_PrivateKey_ASN1", play_use_key),
    PLAYS("SSL_CTX_set_num_tickets", play_tickets),
    PLAYS("SSL_get1_peer_certificate", play_certificate),
    PLAYS("SSL_read", play_read),
    PLAYS("SSL_write", play_write),
    PLAYS("SSL_get_error", play_error),
    PLAYS("ERR_clear_error", play_clear),
    PLAYS("i2d_X509", play_der),
    PLAYS("BIO_meth_new", play_bio_method),
    PLAYS("BIO_meth_set_read", play_bio_read),
    PLAYS("BIO_meth_set_write", play_bio_write),
    PLAYS("BIO_meth_set_ctrl", play_bio_ctrl),
    PLAYS("BIO_new", play_bio_new),
    PLAYS("BIO_set_init", play_bio_init),
    PLAYS("BIO_set_flags", play_bio_flags),
    PLAYS("BIO_clear_flags", play_bio_clear),
    PLAYS("BIO_set_data", play_bio_set),
    PLAYS("BIO_get_data", play_bio_get),
};

static void *play_library(const char *name, int flags) {
    (void)name, (void)flags;
    return play_lib();
}

static void *play_symbol(void *library, const char *name) {
    (void)library;
    for (size_t at = 0; at < sizeof plays / sizeof *plays; at++) {
        if (strcmp(plays[at].name, name) == 0) return plays[at].function;
    }
    return NULL;
}

#endif
