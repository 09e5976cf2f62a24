// The lock of what captures of several threads change in graphs: the lists of calls and of staged copies.
#include "graph.h"

pthread_mutex_t gp_graph_lock = PTHREAD_MUTEX_INITIALIZER;
