// Single fields of one line of JSON, for the shim and for NVML.
#ifndef GP_JSON_H
#define GP_JSON_H

#include <stdbool.h>
#include <stddef.h>

const char *gp_json_blank(const char *at);  // behind what is blank
const char *gp_json_value(const char *at);  // behind one value
// The value of a key of the object that starts at text, or NULL.
const char *gp_json_field(const char *text, const char *key);
bool gp_json_string(const char *value, char *target, size_t capacity);

// The PCI domain of a device of a server of the lease, counted from zero: GPUs of different servers
// may sit in the same place, and programs tell them apart by it.
static inline int gp_pci_domain(int domain, int server) { return (domain + (server << 8)) & 0xffff; }

#endif
