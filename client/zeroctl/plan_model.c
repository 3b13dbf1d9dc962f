/*
 * The model that zeroctl plan is asked about, as a layout: from a job, or from the headers of
 * safetensors files.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

enum { NAME_BYTES = 256 };

static const struct plan_optimizer optimizers[] = {
#define X(name, set, ...) { name, { __VA_ARGS__ } },
        ZERO_OPTIMIZER_MAP(X)
#undef X
};

const struct plan_optimizer *plan_optimizer(const char *name)
{
        for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++)
                if (strcmp(optimizers[i].name, name) == 0)
                        return &optimizers[i];
        return NULL;
}

void plan_model_free(struct plan_model *m)
{
        zero_layout_free(m->own);
}

int plan_model_init(struct plan_model *m)
{
        int r = zero_layout_new(&m->own);

        m->layout = m->own;
        return r ? CTL_FAILED : CTL_OK;
}

int plan_model_flaw(const struct plan_model *m)
{
        ctl_error("zerod has no job of this model: %s",
                  m->own ? zero_layout_error(m->own) : "out of memory");
        return CTL_FAILED;
}

/* A weight of a layer, or a stack of weights. */
static bool is_matrix(const struct plan_model *m, uint32_t tensor)
{
        const uint64_t *shape;
        uint32_t n = zero_layout_tensor_shape(m->layout, tensor, &shape);

        return zero_layout_tensor_group(m->layout, tensor) < m->layer_groups && n >= 2 && n <= 3 &&
               !zero_layout_tensor_frozen(m->layout, tensor) &&
               zero_layout_tensor_elements(m->layout, tensor) > 0;
}

int plan_model_muon(struct plan_model *m)
{
        m->muon = true;
        for (uint32_t t = 0; t < zero_layout_tensors(m->layout); t++)
                if (is_matrix(m, t) && zero_layout_tensor_optimizer(m->own, t, "muon"))
                        return CTL_FAILED;
        return CTL_OK;
}

/* ---- a job ----------------------------------------------------------------------- */

int plan_model_job(struct ctl *ctl, struct plan_model *ret)
{
        int r = ctl_attach(ctl);

        *ret = (struct plan_model){ 0 };
        if (r != CTL_OK)
                return r;
        ret->layout = zero_client_layout(ctl->client);
        for (uint32_t t = 0; t < zero_layout_tensors(ret->layout); t++) {
                const char *name = zero_layout_optimizer_of(ret->layout, t);
                const uint64_t *rows;

                ret->muon = ret->muon || zero_layout_tensor_rows(ret->layout, t, &rows) > 0;
                if (plan_optimizer(name))
                        continue;
                ctl_error("job %s: this zeroctl does not know the optimizer '%.20s': use the one "
                          "that came with the daemon",
                          ctl->argument, name);
                return CTL_FAILED;
        }
        return CTL_OK;
}

/* ---- safetensors ----------------------------------------------------------------- */

/* A tensor that belongs to a group: those of one layer, or those outside the layers, of one dtype.
 */
struct member {
        char group[NAME_BYTES + 8];
        char name[NAME_BYTES];
        enum zero_dtype dtype;
        uint32_t ndim;
        uint64_t shape[SAFETENSORS_DIM_MAX];
};

struct members {
        struct member *items;
        size_t n;
};

/* Of a parameter; BOOL is a mask. */
static enum zero_dtype find_dtype(const char *name)
{
        for (int i = ZERO_FP32; i < ZERO_BOOL; i++)
                if (strcmp(safetensors_word((enum zero_dtype)i), name) == 0)
                        return (enum zero_dtype)i;
        return (enum zero_dtype)0;
}

/* Bytes of the name up to its first number, "model.layers.12"; 0 if there is none. */
static int layer_of(const char *name)
{
        for (const char *p = name; *p; p += strcspn(p, "."), p += *p == '.') {
                size_t n = strcspn(p, ".");

                if (n && strspn(p, "0123456789") == n)
                        return (int)(p + n - name);
        }
        return 0;
}

static int add_file(struct members *all, const struct safetensors *file, const char *path,
                    int64_t *left_out)
{
        struct member *items = realloc(all->items, (all->n + file->n + 1) * sizeof(*items));

        if (!items) {
                ctl_error("out of memory");
                return CTL_FAILED;
        }
        all->items = items;
        for (size_t i = 0; i < file->n; i++) {
                const struct safetensor *t = &file->tensors[i];
                struct member *m = &all->items[all->n];

                *m = (struct member){ .dtype = find_dtype(t->dtype), .ndim = t->ndim };
                if (!m->dtype && strchr("IUB", t->dtype[0])) {
                        ++*left_out; /* counts and masks */
                        continue;
                }
                if (!m->dtype || strlen(t->name) >= NAME_BYTES) {
                        ctl_error(
                                "%s: tensor '%.100s' of %s cannot be planned: a name has at most "
                                "255 bytes, and parameters are F32, BF16, F16, I8, U8, F8_E4M3 or "
                                "F8_E5M2",
                                path, t->name, t->dtype);
                        return CTL_FAILED;
                }
                memcpy(m->shape, t->shape, sizeof(m->shape));
                strcpy(m->name, t->name);
                snprintf(m->group, sizeof(m->group), "%.*s.%s", layer_of(t->name), t->name,
                         t->dtype);
                all->n++;
        }
        return CTL_OK;
}

/* Layers by number, those outside the layers last. */
static int compare_members(const void *a, const void *b)
{
        const struct member *x = a, *y = b;
        bool outside = x->group[0] == '.';

        if (outside != (y->group[0] == '.'))
                return outside ? 1 : -1;
        int r = strverscmp(x->group, y->group);

        return r ? r : strcmp(x->name, y->name);
}

static int make_layout(struct members *all, const char *path, struct plan_model *m)
{
        uint32_t g = 0, t;

        if (all->n == 0) {
                ctl_error("%s has no parameters: no tensor has a type of parameters", path);
                return CTL_FAILED;
        }
        if (plan_model_init(m) != CTL_OK)
                return plan_model_flaw(m);
        qsort(all->items, all->n, sizeof(*all->items), compare_members);
        for (size_t i = 0; i < all->n; i++) {
                const struct member *x = &all->items[i];
                struct zero_tensor tensor = { .name = x->name,
                                              .ndim = x->ndim,
                                              .shape = x->shape,
                                              .frozen = zero_dtype_is_bytes(x->dtype) };

                if (i == 0 || strcmp(x->group, x[-1].group) != 0)
                        if (zero_layout_group(m->own, x->group, x->dtype, NULL, 0, 0, &g))
                                return plan_model_flaw(m);
                m->layer_groups = x->group[0] == '.' ? m->layer_groups : g + 1;
                if (i > 0 && strcmp(x->name, x[-1].name) == 0) {
                        ctl_error("%s: tensor '%.200s' is in two files", path, x->name);
                        return CTL_FAILED;
                }
                if (zero_layout_tensor(m->own, g, &tensor, &t))
                        return plan_model_flaw(m);
        }
        return CTL_OK;
}

static int read_file(const char *path, struct members *all, int64_t *left_out)
{
        char error[SAFETENSORS_ERROR];
        struct safetensors file;
        int r;

        if (safetensors_open(path, &file, error)) {
                ctl_error("%s cannot be read as safetensors: %s", path, error);
                return CTL_FAILED;
        }
        r = add_file(all, &file, path, left_out);
        safetensors_close(&file);
        return r;
}

/* Opens each file of a weight_map once: its tensors name files beside the index. */
static int read_index(const json_t *map, const char *path, struct members *all, int64_t *left_out)
{
        const char *slash = strrchr(path, '/'), *key;
        json_t *seen = json_object(), *value;
        int r = CTL_OK;

        json_object_foreach((json_t *)map, key, value)
        {
                const char *file = json_string_value(value);
                char beside[4096];

                if (!file || !*file || strchr(file, '/')) {
                        ctl_error("%s: weight_map names no file beside it for '%.100s'", path, key);
                        r = CTL_FAILED;
                        break;
                }
                if (json_object_get(seen, file))
                        continue;
                json_object_set_new(seen, file, json_true());
                snprintf(beside, sizeof(beside), "%.*s%s", slash ? (int)(slash + 1 - path) : 0,
                         path, file);
                r = read_file(beside, all, left_out);
                if (r != CTL_OK)
                        break;
        }
        json_decref(seen);
        return r;
}

static int model_json(const char *path, struct members *all, struct plan_model *m)
{
        json_error_t why;
        json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *map;
        int r;

        if (!json_is_object(j)) {
                ctl_error("%s is not a JSON object: %s", path,
                          j ? "it is another value" : why.text);
                json_decref(j);
                return CTL_FAILED;
        }
        map = json_object_get(j, "weight_map");
        if (map) {
                r = read_index(map, path, all, &m->tensors_left_out);
                if (r == CTL_OK)
                        r = make_layout(all, path, m);
        } else if (json_object_get(j, "model_type")) {
                r = plan_model_config(j, path, m);
        } else {
                ctl_error("%s has neither \"weight_map\", as an index of safetensors files, nor "
                          "\"model_type\", as a config.json",
                          path);
                r = CTL_FAILED;
        }
        json_decref(j);
        return r;
}

int plan_model_file(const char *path, struct plan_model *ret)
{
        size_t n = strlen(path);
        struct members all = { 0 };
        int r;

        *ret = (struct plan_model){ 0 };
        if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
                r = model_json(path, &all, ret);
        } else {
                r = read_file(path, &all, &ret->tensors_left_out);
                if (r == CTL_OK)
                        r = make_layout(&all, path, ret);
        }
        free(all.items);
        return r;
}
