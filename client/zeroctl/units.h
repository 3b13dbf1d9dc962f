/* Numbers for people: bytes, durations, counts.  Pure. */
#pragma once

struct unit {
        char text[32];
};

struct unit unit_bytes(double bytes);     /* 1.50 GiB */
struct unit unit_seconds(double seconds); /* 120 us, 3.2 ms, 4.1 s, 2 m 13 s, 5 d 2 h */
struct unit unit_count(double count);     /* 950, 12.3 k, 124.4 M */
struct unit unit_number(double number);   /* six digits */
