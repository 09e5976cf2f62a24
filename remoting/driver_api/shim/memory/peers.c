// Copies straight from one server of the lease to another, by links between their workers.
//
// The first copy tells each worker who the others are, with a key for each that was made here. A
// worker's host connects it to servers of its lease alone. Where it cannot, or is told not to,
// copies pass through this process.
#define _GNU_SOURCE
#include "core.h"
#include "link.h"

#include <stdlib.h>
#include <sys/random.h>

#define KEY_SIZE 32
#define TEXT_SIZE 104

// As it travels; see peers.py.
struct peer {
    char server[TEXT_SIZE], name[TEXT_SIZE];
    uint8_t session[16], certificate[32], key[KEY_SIZE];
    uint32_t encrypted, there;
};

enum { UNKNOWN = 0, DIRECT, THROUGH_US };

static pthread_mutex_t peer_lock = PTHREAD_MUTEX_INITIALIZER;  // all of the following
static int introduced;  // UNKNOWN, DIRECT or THROUGH_US for all of them
static unsigned char ways[GP_SERVERS_MAX][GP_SERVERS_MAX];
static uint64_t next_number = 1;
// One copy at a time from each server, so that both ends of a link see the same order.
static pthread_mutex_t turns[GP_SERVERS_MAX] = {[0 ... GP_SERVERS_MAX - 1] =
                                                    PTHREAD_MUTEX_INITIALIZER};

static bool forbidden(void) {
    const char *text = getenv("GPUPOOL_PEER_COPIES");
    return text != NULL && strcmp(text, "0") == 0;
}

static int introduce_to(int server, const struct peer *peers) {
    struct {
        uint8_t key[KEY_SIZE];
        struct peer others[];
    } *text;
    size_t size = sizeof *text + (size_t)gp.server_count * sizeof *peers;
    text = calloc(1, size);
    if (text == NULL) return GP_OUT_OF_MEMORY;
    memcpy(text->key, peers[server].key, KEY_SIZE);
    memcpy(text->others, peers, (size_t)gp.server_count * sizeof *peers);
    memset(&text->others[server], 0, sizeof *peers);
    struct gp_request request = {0};
    GP_ROUTE(gp_first_device(server));
    int status = gp_exchange_peer_introduce(&request, server, gp.server_count, text, size);
    free(text);
    return status;
}

// With peer_lock held.
static int introduce(void) {
    struct peer *peers = calloc((size_t)gp.server_count, sizeof *peers);
    if (peers == NULL || forbidden()) {
        free(peers);
        return THROUGH_US;
    }
    int way = DIRECT;
    for (int at = 0; at < gp.server_count; at++) {
        const struct gp_link *link = &gp_links[at];
        memcpy(peers[at].server, link->id, sizeof link->id);
        memcpy(peers[at].name, link->name, sizeof link->name);
        memcpy(peers[at].session, link->session, sizeof link->session);
        memcpy(peers[at].certificate, link->certificate, sizeof link->certificate);
        peers[at].encrypted = link->encrypted;
        peers[at].there = link->socket >= 0;
        if (getrandom(peers[at].key, KEY_SIZE, 0) != KEY_SIZE) way = THROUGH_US;
    }
    for (int at = 0; at < gp.server_count && way == DIRECT; at++) {
        bool used = gp_first_device(at) >= 0;
        if (used && introduce_to(at, peers) != GP_SUCCESS) way = THROUGH_US;
    }
    free(peers);
    return way;
}

// Whether the workers of two servers are connected; peer_lock is held.
static bool connect_them(int from, int to) {
    if (introduced == UNKNOWN) introduced = introduce();
    if (introduced != DIRECT) return false;
    if (ways[from][to] == UNKNOWN) {
        char why[201] = "";
        struct gp_request request = {.body = why, .capacity = sizeof why - 1};
        GP_ROUTE(gp_first_device(from));
        int status = gp_exchange_peer_connect(&request, to);
        bool good = status == GP_SUCCESS && request.length == 0;
        ways[from][to] = good ? DIRECT : THROUGH_US;
        if (!good && gp_verbose()) {
            gp_say("copies from server %s to %s pass through this program: %s", gp_links[from].name,
                   gp_links[to].name, *why ? why : "they cannot be connected");
        }
    }
    return ways[from][to] == DIRECT;
}

int gp_copy_direct(uint64_t target, uint64_t source, size_t size, void *stream) {
    int at = gp_device_at(source), to = gp_device_at(target);
    int from_server = gp.devices[at].server, to_server = gp.devices[to].server;
    pthread_mutex_lock(&peer_lock);
    bool connected = connect_them(from_server, to_server);
    uint64_t number = next_number++;
    pthread_mutex_unlock(&peer_lock);
    if (!connected) return GP_NOT_SUPPORTED;
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    int home = gp_here();
    uint64_t streams[2];
    struct gp_request sent = {0}, received = {0};
    pthread_mutex_lock(&turns[from_server]);
    int status = GP_SUCCESS;
    {
        GP_ROUTE(at);
        status = gp_stream_id(gp_here() == home ? stream : NULL, &streams[0]);
        if (status == GP_SUCCESS) {
            gp_ask_peer_send(&sent, number, to_server, source, size, streams[0]);
        }
    }
    if (status == GP_SUCCESS) {
        GP_ROUTE(to);
        status = gp_stream_id(gp_here() == home ? stream : NULL, &streams[1]);
        if (status != GP_SUCCESS) streams[1] = GP_LEGACY_STREAM;  // the other end must be met
        gp_ask_peer_receive(&received, number, from_server, target, size, streams[1]);
        int there = gp_hear(&received);
        if (there == GP_DEVICE_UNAVAILABLE) {
            // The receiver has lost the sender, which may learn of that minutes later: what is full
            // is probed less and less often.
            GP_ROUTE(at);
            gp_post_peer_cut(to_server);
            gp_flush();
        }
        int here = gp_hear(&sent);
        if (status == GP_SUCCESS) status = here != GP_SUCCESS ? here : there;
    }
    pthread_mutex_unlock(&turns[from_server]);
    return status;
}
