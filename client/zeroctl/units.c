/* See units.h. */
#include "units.h"

#include <math.h>
#include <stdio.h>

static struct unit scaled(double value, double base, const char *const *names, int n)
{
        struct unit u;
        int i = 0;

        while (i < n - 1 && fabs(value) >= base) {
                value /= base;
                i++;
        }
        snprintf(u.text, sizeof(u.text),
                 i == 0       ? "%.0f%s"
                 : value < 10 ? "%.2f%s"
                              : "%.1f%s",
                 value, names[i]);
        return u;
}

struct unit unit_bytes(double bytes)
{
        static const char *const names[] = { " B", " KiB", " MiB", " GiB", " TiB", " PiB" };

        return scaled(bytes, 1024, names, 6);
}

struct unit unit_count(double count)
{
        static const char *const names[] = { "", " k", " M", " G", " T" };

        return scaled(count, 1000, names, 5);
}

struct unit unit_number(double number)
{
        struct unit u;

        snprintf(u.text, sizeof(u.text), "%.6g", number);
        return u;
}

static struct unit two_parts(double seconds, double big, const char *big_name, double small,
                             const char *small_name)
{
        struct unit u;
        double whole = floor(seconds / big);

        snprintf(u.text, sizeof(u.text), "%.0f %s %.0f %s", whole, big_name,
                 floor((seconds - whole * big) / small), small_name);
        return u;
}

struct unit unit_seconds(double seconds)
{
        struct unit u;

        if (seconds >= 86400)
                return two_parts(seconds, 86400, "d", 3600, "h");
        if (seconds >= 3600)
                return two_parts(seconds, 3600, "h", 60, "m");
        if (seconds >= 60)
                return two_parts(seconds, 60, "m", 1, "s");
        if (seconds >= 1)
                snprintf(u.text, sizeof(u.text), "%.1f s", seconds);
        else if (seconds >= 1e-3)
                snprintf(u.text, sizeof(u.text), "%.1f ms", seconds * 1e3);
        else
                snprintf(u.text, sizeof(u.text), "%.0f us", seconds * 1e6);
        return u;
}
