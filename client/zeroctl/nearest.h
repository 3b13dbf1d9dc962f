/* The known word that a misspelt one was most likely meant to be.  Pure. */
#pragma once

/* Of n words; NULL if none is near. */
const char *nearest(const char *word, const char *const *words, unsigned n);
