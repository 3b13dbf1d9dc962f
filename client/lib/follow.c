/* A client's memory of the versions that it follows; see follow.h. */
#include "follow.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

void follow_free(struct follow *f)
{
        if (!f)
                return;
        slots_free(f->slots);
        free(f->form);
        for (uint32_t i = 0; i < FOLLOW_COPIES; i++)
                mapping_deinit(&f->copies[i].mapping);
        free(f);
}

int follow_new(const layout *l, struct follow **ret)
{
        struct follow *f = calloc(1, sizeof(*f));

        if (!f || !(f->form = calloc(l->n_groups, sizeof(*f->form)))) {
                follow_free(f);
                return -ENOMEM;
        }
        for (uint32_t g = 0; g < l->n_groups; g++)
                f->form[g] = (uint8_t)l->groups[g].dtype;
        *ret = f;
        return 0;
}

int follow_map(struct follow *f, uint32_t copy, uint64_t serial, int fd)
{
        struct copy_memory *m = &f->copies[copy];
        uint64_t bytes = f->slots->bytes;
        struct stat st;
        int r;

        if (bytes == 0 || (m->known && m->serial == serial))
                return 0;
        if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < bytes)
                return -EBADF;
        mapping_deinit(&m->mapping);
        m->known = false;
        r = mapping_open(fd, bytes, PROT_READ, true, &m->mapping);
        if (r)
                return r;
        m->known = true;
        m->serial = serial;
        return 0;
}
