/* The known word nearest to a misspelt one.  Pure. */
#pragma once

/* words: n of them.  NULL if none is near. */
const char *nearest(const char *word, const char *const *words, unsigned n);
