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

#endif
