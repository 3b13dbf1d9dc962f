/* Windows on GPUs, charged to users; see window.h. */
#include "daemon/job/core/window.h"

#include "daemon/job/core/core.h"

int windows_check(const struct engine *x, uint32_t uid, uint32_t place,
                  const struct rank_window *windows, uint32_t n, struct fault *fault)
{
        uint64_t most = x->conf->gpu_windows, used = place_charged(place, uid);

        for (uint32_t i = 0; most && i < n; i++) {
                bool made = windows[i].bytes && windows[i].segment.data;
                uint64_t bytes = windows[i].bytes;

                used -= made ? windows[i].segment.bytes : 0;
                if (bytes && (used > most || bytes > most - used))
                        return fault_set(
                                fault, ZERO_EQUOTA,
                                "no memory of %s for %.200s: %.1f MiB are needed; user %u's "
                                "windows have %.1f there, and gpu_windows allows %.1f",
                                place_name(place).text, windows[i].what, (double)bytes / 0x1p20,
                                uid, (double)used / 0x1p20, (double)most / 0x1p20);
                used += bytes;
        }
        return 0;
}

int window_make(uint32_t place, uint32_t uid, struct rank_window *w, struct fault *fault)
{
        int r = w->bytes ? segment_new_away(place, w->what, w->bytes, &w->segment, fault) : 0;

        if (w->bytes && r == 0)
                place_charge(w->segment.data, uid);
        return r;
}
