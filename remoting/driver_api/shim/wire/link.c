// From the environment to sessions: the agent of gpupool run, then a connection to each worker.
#define _GNU_SOURCE
#include "wire.h"
#include "hash.h"
#include "json.h"
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define LINE_MAX_SIZE (256 * 1024)
#define HANDSHAKE_SECONDS 30
#define HANDSHAKE_LOOK_MS 500  // between looks whether the lease is lost already
#define SOCKET_BUFFER (4 << 20)

struct gp_link gp_links[GP_SERVERS_MAX];
int gp_agent_socket = -1;
struct gp_names gp_named[GP_DEVICES_MAX];
int gp_named_count;

static char agent_line[LINE_MAX_SIZE];

static bool copy_hex(const char *value, uint8_t *target, size_t size) {
    char text[129];
    if (!gp_json_string(value, text, sizeof text) || strlen(text) != 2 * size) return false;
    for (size_t at = 0; at < size; at++) {
        unsigned byte;
        if (sscanf(text + 2 * at, "%2x", &byte) != 1) return false;
        target[at] = (uint8_t)byte;
    }
    return true;
}

static bool read_line(int fd, char *line, size_t capacity) {
    size_t used = 0;
    while (used + 1 < capacity) {
        ssize_t got = recv(fd, line + used, 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        if (line[used++] == '\n') {
            line[used - 1] = '\0';
            return true;
        }
    }
    return false;
}

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

// A worker may need long to answer, but not once gpupool run has lost its server.
static bool goes_on(struct gp_handshake *handshake) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (handshake->until == 0) handshake->until = now.tv_sec + HANDSHAKE_SECONDS;
    if (handshake->lost == NULL) handshake->lost = gp_ask_agent(0);
    return handshake->lost == NULL && now.tv_sec < handshake->until;
}

static bool connect_to(int fd, const struct addrinfo *at, struct gp_handshake *handshake) {
    int flags = fcntl(fd, F_GETFL), error = 0;
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) return false;
        struct pollfd entry = {.fd = fd, .events = POLLOUT};
        while (poll(&entry, 1, HANDSHAKE_LOOK_MS) <= 0) {
            if (!goes_on(handshake)) return false;
        }
        socklen_t size = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    fcntl(fd, F_SETFL, flags);
    return error == 0;
}

static int connect_tcp(const struct addrinfo *at, struct gp_handshake *handshake) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (!connect_to(fd, at, handshake)) {
        close(fd);
        return -1;
    }
    // With the check of gp_peer_is_dead, a machine that went away is noticed after 5 s, should
    // gpupool run not have noticed that before. Each probe is sent once, and may be lost.
    const int on = 1, idle = 1, interval = 1, count = 4;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    return fd;
}

static int connect_host(const char *host, const char *port, struct gp_handshake *handshake) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, port, &hints, &found) != 0) return -1;
    int fd = -1;
    for (struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        fd = connect_tcp(at, handshake);
    }
    freeaddrinfo(found);
    return fd;
}

static bool receive_exactly(int fd, uint8_t *target, size_t size, struct gp_handshake *handshake) {
    while (size > 0) {
        ssize_t got = recv(fd, target, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN && goes_on(handshake)) continue;
        if (got <= 0) return false;
        target += got;
        size -= (size_t)got;
    }
    return true;
}

static bool send_exactly(int fd, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

// The handshake without TLS: both ends prove that they know the ticket.
static bool prove(int fd, const uint8_t session[16], const uint8_t ticket[32],
                  struct gp_handshake *handshake) {
    uint8_t hello[40], answer[48], text[6 + 32], proof[32], accepted;
    memcpy(hello, "gpupool\x01", 8);
    memcpy(hello + 8, session, 16);
    if (getrandom(hello + 24, 16, 0) != 16) return false;
    if (!send_exactly(fd, hello, sizeof hello)) return false;
    if (!receive_exactly(fd, answer, sizeof answer, handshake)) return false;
    memcpy(text, "server", 6);
    memcpy(text + 6, hello + 24, 16);
    memcpy(text + 22, answer, 16);
    gp_hmac_sha256(ticket, 32, text, sizeof text, proof);
    uint8_t different = 0;
    for (int at = 0; at < 32; at++) different |= proof[at] ^ answer[16 + at];
    if (different) return false;
    memcpy(text, "client", 6);
    gp_hmac_sha256(ticket, 32, text, sizeof text, proof);
    if (!send_exactly(fd, proof, sizeof proof)) return false;
    return receive_exactly(fd, &accepted, 1, handshake) && accepted == 1;
}

// Prove both ends on a connection that has just been made.
static bool begin(struct gp_link *link, bool tls, const uint8_t id[16], const uint8_t ticket[32],
                  struct gp_handshake *handshake) {
    const int size = SOCKET_BUFFER;
    setsockopt(link->socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(link->socket, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    struct timeval look = {.tv_usec = HANDSHAKE_LOOK_MS * 1000}, none = {0};
    setsockopt(link->socket, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
    char name[64] = "";
    for (int at = 0; at < 16; at++) sprintf(name + 2 * at, "%02x", id[at]);
    strcat(name, ".session.gpupool");
    bool proven = tls ? gp_tls_start(link, name, link->certificate, ticket, handshake)
                      : prove(link->socket, id, ticket, handshake);
    setsockopt(link->socket, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    return proven;
}

bool gp_link_again(const struct gp_link *link, const uint8_t id[16], const uint8_t ticket[32],
                   struct gp_link *made) {
    struct gp_handshake handshake = {.goes_on = goes_on};
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    *made = *link;
    made->connection = NULL;
    if (getpeername(link->socket, (struct sockaddr *)&address, &size) != 0) return false;
    struct addrinfo at = {.ai_addr = (struct sockaddr *)&address, .ai_addrlen = size};
    at.ai_family = address.ss_family;
    made->socket = connect_tcp(&at, &handshake);
    if (made->socket < 0) return false;
    gp_link_moved(made);
    if (begin(made, link->connection != NULL, id, ticket, &handshake)) return true;
    close(made->socket);
    return false;
}

static const char *program_name(void) {
    return program_invocation_short_name != NULL ? program_invocation_short_name : "";
}

// What JSON could not hold as it is becomes an underscore.
static void quote(const char *text, char *target, size_t capacity) {
    size_t used = 0;
    for (const char *at = text; *at != '\0' && used + 1 < capacity; at++) {
        target[used++] = *at < ' ' || *at == '"' || *at == '\\' || *at > '~' ? '_' : *at;
    }
    target[used] = '\0';
}

// What the driver reads on the server when it starts; the same names as HEEDED of settings.py.
static const char *const HEEDED[] = {
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_BINARY_LOADER_THREAD_COUNT",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
    "CUDA_AUTO_BOOST",
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
    "CUDA_DISABLE_PERF_BOOST",
    "CUDA_MODULE_LOADING",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_FORCE_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_DISABLE_JIT",
    "CUDA_FORCE_PRELOAD_LIBRARIES",
    "CUDA_DEVICE_DEFAULT_STACK_SIZE_MAX",
};
#define HEEDED_COUNT (sizeof HEEDED / sizeof *HEEDED)
#define VISIBLE_SIZE 4096  // of CUDA_VISIBLE_DEVICES, with its end
#define SETTING_MAX 32     // characters of a value
#define SETTING_SIZE 128   // of its name, both quoted, with a comma

// The variables of this process among these, as the inside of a JSON object.
static void list_settings(char target[HEEDED_COUNT * SETTING_SIZE]) {
    size_t used = 0;
    *target = '\0';
    for (size_t at = 0; at < HEEDED_COUNT; at++) {
        const char *value = getenv(HEEDED[at]);
        size_t size = value == NULL ? 0 : strspn(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_.+-"
                                                        "abcdefghijklmnopqrstuvwxyz0123456789");
        if (size == 0 || size > SETTING_MAX || value[size] != '\0') continue;
        used += (size_t)snprintf(target + used, SETTING_SIZE, "%s\"%s\":\"%s\"",
                                 used == 0 ? "" : ",", HEEDED[at], value);
    }
}

// The answer of the agent. A run that waits for GPUs says meanwhile what it waits for.
static bool read_answer(void) {
    char text[300];
    while (read_line(gp_agent_socket, agent_line, sizeof agent_line)) {
        if (gp_json_field(agent_line, "ok") != NULL) return true;
        if (gp_json_string(gp_json_field(agent_line, "text"), text, sizeof text)) gp_say("%s", text);
    }
    return false;
}

static bool ask_agent(void) {
    const char *path = getenv("GPUPOOL_AGENT");
    if (path == NULL || *path == '\0') {
        if (gp_verbose()) gp_say("no GPUPOOL_AGENT: run this program with gpupool run");
        return false;
    }
    gp_agent_socket = connect_unix(path);
    if (gp_agent_socket < 0) {
        gp_say("no answer from gpupool run: %s", strerror(errno));
        return false;
    }
    char request[VISIBLE_SIZE + HEEDED_COUNT * SETTING_SIZE + 512];
    char name[128], visible[VISIBLE_SIZE + 16] = "", settings[HEEDED_COUNT * SETTING_SIZE];
    quote(program_name(), name, sizeof name);
    // Without a list, gpupool run opens sessions with all servers.
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list != NULL && strlen(list) < VISIBLE_SIZE && !gp_fastest_first()) {
        char quoted[VISIBLE_SIZE];
        quote(list, quoted, sizeof quoted);
        snprintf(visible, sizeof visible, ",\"visible\":\"%s\"", quoted);
    }
    list_settings(settings);
    int size = snprintf(request, sizeof request,
                        "{\"op\":\"session\",\"door\":\"cuda\",\"pid\":%d,\"ppid\":%d,"
                        "\"program\":\"%s\"%s,\"settings\":{%s}}\n",
                        (int)getpid(), (int)getppid(), name, visible, settings);
    if (!send_exactly(gp_agent_socket, request, (size_t)size) ||
        !read_answer()) {
        gp_say("gpupool run has ended");
        return false;
    }
    const char *good = gp_json_field(agent_line, "ok");
    if (good != NULL && strncmp(good, "true", 4) == 0) return true;
    char what[300] = "the agent sent nonsense", why[300] = "";
    gp_json_string(gp_json_field(agent_line, "what"), what, sizeof what);
    gp_json_string(gp_json_field(agent_line, "why"), why, sizeof why);
    gp_say("%s%s%s", what, *why ? ": " : "", why);
    return false;
}

static int connect_link(struct gp_link *link, const char *session) {
    struct gp_handshake handshake = {.goes_on = goes_on};
    uint8_t id[16], ticket[32];
    char path[200], host[300] = "", encryption[8] = "";
    if (!copy_hex(gp_json_field(session, "session"), id, sizeof id) ||
        !copy_hex(gp_json_field(session, "ticket"), ticket, sizeof ticket)) {
        gp_say("gpupool run sent a session without a ticket");
        return GP_NO_DEVICE;
    }
    gp_json_string(gp_json_field(session, "encryption"), encryption, sizeof encryption);
    bool encrypt = strcmp(encryption, "off") != 0, tls = false;
    // For links between servers.
    memcpy(link->session, id, sizeof id);
    memcpy(link->ticket, ticket, sizeof ticket);  // of which further connections have theirs
    link->encrypted = encrypt;
    copy_hex(gp_json_field(session, "certificate_sha256"), link->certificate, 32);
    gp_json_string(gp_json_field(session, "server_id"), link->id, sizeof link->id);
    if (gp_json_string(gp_json_field(session, "unix"), path, sizeof path)) {
        link->socket = connect_unix(path);
    }
    if (link->socket < 0 && encrypt && !gp_tls_possible()) {
        // gpupool run encrypts from there on.
        if (gp_json_string(gp_json_field(session, "relay"), path, sizeof path)) {
            link->socket = connect_unix(path);
        }
        if (gp_verbose()) gp_say("no libssl.so.3: gpupool run encrypts for this process");
    } else if (link->socket < 0) {
        const char *address = gp_json_field(session, "address");
        if (address == NULL || *address != '[') return GP_NO_DEVICE;
        address = gp_json_blank(address + 1);
        if (!gp_json_string(address, host, sizeof host)) return GP_NO_DEVICE;
        address = gp_json_blank(gp_json_value(address));
        char port[8];
        snprintf(port, sizeof port, "%d", *address == ',' ? atoi(address + 1) : 0);
        link->socket = connect_host(host, port, &handshake);
        tls = encrypt;
    }
    if (link->socket < 0) {
        if (handshake.lost != NULL) gp_say("%s", handshake.lost);
        gp_say("cannot connect to server %s%s%s", link->name, *host ? " at " : "", host);
        return GP_NO_DEVICE;
    }
    if (!begin(link, tls, id, ticket, &handshake)) {
        if (handshake.lost != NULL) gp_say("%s", handshake.lost);
        gp_say("server %s refused the data connection", link->name);
        return GP_NO_DEVICE;
    }
    return GP_SUCCESS;
}

// Append the names of a session's devices.
static void list_devices(struct gp_link *link, const char *session) {
    int before = gp_named_count;
    const char *at = gp_json_field(session, "devices");
    if (at == NULL || *at != '[') return;
    for (at = gp_json_blank(at + 1); *at == '{' && gp_named_count < GP_DEVICES_MAX;) {
        gp_json_string(gp_json_field(at, "uuid"), gp_named[gp_named_count++].known, GP_UUID_TEXT);
        at = gp_json_blank(gp_json_value(at));
        if (*at == ',') at = gp_json_blank(at + 1);
    }
    link->devices = gp_named_count - before;
}

// A process that may see devices of some servers only opens no sessions with the others, as one
// process for each GPU does. Those are known by what gpupool run says of them.
static void choose_servers(bool wanted[GP_SERVERS_MAX]) {
    int chosen[GP_DEVICES_MAX], owner[GP_DEVICES_MAX], total = 0;
    bool unknown = gp_fastest_first();  // the servers say how fast their devices are
    for (int at = 0; at < gp.server_count; at++) {
        unknown |= gp_links[at].devices == 0;
        for (int one = 0; one < gp_links[at].devices; one++) {
            // Parts of a GPU have names that CUDA does not tell by its devices' UUIDs.
            unknown |= strncmp(gp_named[total].known, "GPU-", 4) != 0;
            owner[total++] = at;
        }
    }
    int found = unknown ? 0 : gp_choose_visible(gp_named, total, chosen);
    for (int at = 0; at < gp.server_count; at++) wanted[at] = unknown;
    for (int at = 0; at < found; at++) wanted[owner[chosen[at]]] = true;
    if (found == 0) wanted[0] = true;  // it still has a version to tell
}

int gp_connect(void) {
    if (!ask_agent()) return GP_NO_DEVICE;
    const char *at = gp_json_field(agent_line, "sessions");
    if (at == NULL || *at != '[') return GP_NO_DEVICE;
    const char *sessions[GP_SERVERS_MAX];
    for (at = gp_json_blank(at + 1); *at == '{' && gp.server_count < GP_SERVERS_MAX;) {
        struct gp_link *link = &gp_links[gp.server_count];
        *link = (struct gp_link){.server = gp.server_count, .socket = -1};
        pthread_mutex_init(&link->lock, NULL);
        gp_json_string(gp_json_field(at, "server"), link->name, sizeof link->name);
        list_devices(link, at);
        sessions[gp.server_count++] = at;
        at = gp_json_blank(gp_json_value(at));
        if (*at == ',') at = gp_json_blank(at + 1);
    }
    if (gp.server_count == 0) return GP_NO_DEVICE;
    bool wanted[GP_SERVERS_MAX] = {true};
    if (gp.server_count > 1) choose_servers(wanted);
    for (int server = 0; server < gp.server_count; server++) {
        if (wanted[server]) GP_CHECK(connect_link(&gp_links[server], sessions[server]));
    }
    return GP_SUCCESS;
}

// --- while the session lives ----------------------------------------------------------------------

static pthread_mutex_t agent_lock = PTHREAD_MUTEX_INITIALIZER;

// One push of the agent; the reason when it says that the lease is lost.
static const char *take_push(const char *line) {
    static char what[300];
    char op[16], text[300];
    if (!gp_json_string(gp_json_field(line, "op"), op, sizeof op)) return NULL;
    if (strcmp(op, "notice") == 0 && gp_json_string(gp_json_field(line, "text"), text, sizeof text)) {
        gp_say("%s", text);
    }
    bool lost = strcmp(op, "lost") == 0 && gp_json_string(gp_json_field(line, "what"), what, sizeof what);
    return lost ? what : NULL;
}

const char *gp_ask_agent(int wait_ms) {
    static char pushed[4096];
    static size_t used;
    const char *lost = NULL;
    pthread_mutex_lock(&agent_lock);
    while (lost == NULL && gp_agent_socket >= 0) {
        struct pollfd entry = {.fd = gp_agent_socket, .events = POLLIN};
        if (poll(&entry, 1, wait_ms) <= 0) break;
        ssize_t got = recv(gp_agent_socket, pushed + used, sizeof pushed - used, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) {
            // gpupool run is gone, and its server ends this session, which is noticed there.
            close(gp_agent_socket);
            gp_agent_socket = -1;
            break;
        }
        used += (size_t)got;
        char *end;
        while ((end = memchr(pushed, '\n', used)) != NULL) {
            *end = '\0';
            const char *reason = take_push(pushed);
            if (reason != NULL) lost = reason;
            used -= (size_t)(end + 1 - pushed);
            memmove(pushed, end + 1, used);
        }
        if (used == sizeof pushed) used = 0;  // no line of ours is that long
    }
    pthread_mutex_unlock(&agent_lock);
    return lost;
}

void gp_tell_agent(const char *what) {
    char line[256];
    int size = snprintf(line, sizeof line, "{\"op\":\"broken\",\"pid\":%d,\"what\":\"%s\"}\n",
                        (int)getpid(), what);
    if (gp_agent_socket >= 0) send_exactly(gp_agent_socket, line, (size_t)size);
}
