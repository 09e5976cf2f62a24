// The JSON of gpupool run: any text, each field that is read, and values of any room.
#include "input.h"
#include "json.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const KEYS[] = {"ok", "sessions", "what", "uuid", "", "a\\"};
    struct input input = {bytes, size};
    size_t capacity = take_byte(&input);
    char *text = exact_text(input.at, input.left), *target = malloc(capacity + 1);
    const char *end = text + input.left;
    if (target == NULL) abort();
    for (size_t at = 0; at < sizeof KEYS / sizeof *KEYS; at++) {
        const char *value = gp_json_field(text, KEYS[at]);
        if (value != NULL && (value < text || value > end)) abort();
        if (gp_json_string(value, target, capacity)) {
            if (strlen(target) >= capacity) abort();
            // It may be printed, so nothing in it commands a terminal.
            for (const char *letter = target; *letter != '\0'; letter++)
                if (*letter < ' ' || *letter > '~') abort();
        }
        const char *behind = value == NULL ? text : gp_json_value(value);
        if (behind < text || behind > end) abort();
        gp_json_field(gp_json_field(value, "uuid"), KEYS[at]);
    }
    free(target);
    free(text);
    return 0;
}
