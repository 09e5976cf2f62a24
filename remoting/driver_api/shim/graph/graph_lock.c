// The lock of two lists in graphs, which captures of several threads change: the host functions
// that a graph calls, and its copies of the host's memory.
#include "graph.h"

pthread_mutex_t gp_graph_lock = PTHREAD_MUTEX_INITIALIZER;
