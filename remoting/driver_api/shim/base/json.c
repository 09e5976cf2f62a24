// The JSON of gpupool run: one object per line, of which single fields are wanted.
#include "json.h"

#include <stdio.h>
#include <string.h>

const char *gp_json_blank(const char *at) {
    while (*at == ' ' || *at == '\t') at++;
    return at;
}

static const char *skip_string(const char *at) {
    for (at++; *at != '\0' && *at != '"'; at++) {
        if (*at == '\\' && at[1] != '\0') at++;
    }
    return *at == '"' ? at + 1 : at;
}

const char *gp_json_value(const char *at) {
    int depth = 0;
    at = gp_json_blank(at);
    do {
        if (*at == '\0') return at;
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        if (*at == '{' || *at == '[') depth++;
        if (*at == '}' || *at == ']') depth--;
        if (depth < 0) return at;
        at++;
    } while (depth > 0 || (*at != ',' && *at != '}' && *at != ']' && *at != '\0'));
    return at;
}

// The value of a key of the object that starts at text, or NULL.
const char *gp_json_field(const char *text, const char *key) {
    if (text == NULL || *(text = gp_json_blank(text)) != '{') return NULL;
    text = gp_json_blank(text + 1);
    size_t size = strlen(key);
    while (*text == '"') {
        const char *name = text + 1;
        text = skip_string(text);
        bool same = (size_t)(text - 1 - name) == size && memcmp(name, key, size) == 0;
        text = gp_json_blank(text);
        if (*text != ':') return NULL;
        text = gp_json_blank(text + 1);
        if (same) return text;
        text = gp_json_blank(gp_json_value(text));
        if (*text == ',') text = gp_json_blank(text + 1);
    }
    return NULL;
}

bool gp_json_string(const char *value, char *target, size_t capacity) {
    if (value == NULL || *value != '"' || capacity == 0) return false;
    size_t used = 0;
    for (value++; *value != '"' && *value != '\0'; value++) {
        char letter = *value;
        if (letter == '\\') {
            letter = *++value;
            if (letter == 'u' && strlen(value) > 4) {
                unsigned code = 0;
                sscanf(value + 1, "%4x", &code);
                letter = code >= ' ' && code < 127 ? (char)code : '?';
                value += 4;
            } else if (letter == 'n' || letter == 't') {
                letter = ' ';
            } else if (letter == '\0') {
                return false;
            }
        }
        if (used + 1 >= capacity) return false;
        // A terminal takes control characters for commands, those of ISO 6429 in UTF-8 as well. Python
        // escapes all that is not ASCII, so that bytes of other letters come from nobody of ours.
        unsigned char byte = (unsigned char)letter;
        target[used++] = byte < ' ' || byte >= 0x7f ? '?' : letter;
    }
    target[used] = '\0';
    return true;
}
