// The lock of what captures of several threads change in graphs: the lists of host functions that
// they call, and of copies of the host's memory.
#include "graph.h"

pthread_mutex_t gp_graph_lock = PTHREAD_MUTEX_INITIALIZER;
