/*
 * The tables of the ZeRO paper (Rajbhandari et al., SC20, arXiv 1910.02054) from its own formulas,
 * next to the numbers that the paper prints.  GB and B are 10^9, as there.
 */
#include "plan.h"

#include "table.h"

enum { STAGES = 3, SIZES = 3, DEGREES = 6, ROWS = 5 };

static const double gb = 1e9;

/*
 * Bytes of model states of each parameter and process: mixed precision, Adam, K = 12 (sections 3.1
 * and 5, figure 1).  stage 0: plain data parallelism of n processes.
 */
static double states(int stage, double n)
{
        static const double whole[] = { 16, 4, 2, 0 }; /* what the stage does not partition */

        return whole[stage] + (16 - whole[stage]) / n;
}

/* ---- table 1: GB of model states of each process ------------------------------------- */

static const double degrees[DEGREES] = { 1, 4, 16, 64, 256, 1024 };
static const struct {
        const char *name;
        double parameters;
        double gb[DEGREES][STAGES]; /* as the paper prints them, after stage 1, 2 and 3 */
} sizes[SIZES] = {
        { "7.5B",
          7.5e9,
          { { 120, 120, 120 },
            { 52.5, 41.3, 30 },
            { 35.6, 21.6, 7.5 },
            { 31.4, 16.6, 1.88 },
            { 30.4, 15.4, 0.47 },
            { 30.1, 15.1, 0.12 } } },
        { "128B",
          128e9,
          { { 2048, 2048, 2048 },
            { 896, 704, 512 },
            { 608, 368, 128 },
            { 536, 284, 32 },
            { 518, 263, 8 },
            { 513, 257, 2 } } },
        { "1T",
          1e12,
          { { 16000, 16000, 16000 },
            { 7000, 5500, 4000 },
            { 4750, 2875, 1000 },
            { 4187, 2218, 250 },
            { 4046, 2054, 62.5 },
            { 4011, 2013, 15.6 } } },
};

static json_t *table1(void)
{
        json_t *rows = json_array();

        for (int s = 0; s < SIZES; s++)
                for (int d = 0; d < DEGREES; d++)
                        for (int stage = 1; stage <= STAGES; stage++)
                                json_array_append_new(
                                        rows,
                                        json_pack("{s:s, s:I, s:i, s:f, s:f}", "model",
                                                  sizes[s].name, "processes",
                                                  (json_int_t)degrees[d], "stage", stage, "gb",
                                                  sizes[s].parameters * states(stage, degrees[d]) /
                                                          gb,
                                                  "paper_gb", sizes[s].gb[d][stage - 1]));
        return rows;
}

/* ---- table 2: the largest model ------------------------------------------------------- */

enum { GPU_GB = 32, DEGREE = 64 };

static const struct {
        int mp;
        double parameters[STAGES + 1]; /* in B, as the paper prints them, from stage 0 */
} largest[ROWS] = { { 1, { 2, 7.6, 14.4, 128 } },
                    { 2, { 4, 15.2, 28.8, 256 } },
                    { 4, { 8, 30.4, 57.6, 500 } },
                    { 8, { 16, 60.8, 115.2, 1000 } },
                    { 16, { 32, 121.6, 230.4, 2000 } } };

static json_t *table2(void)
{
        json_t *rows = json_array();

        for (int i = 0; i < ROWS; i++)
                for (int stage = 0; stage <= STAGES; stage++)
                        json_array_append_new(
                                rows, json_pack("{s:i, s:i, s:i, s:f, s:f}", "model_parallel",
                                                largest[i].mp, "gpus", largest[i].mp * DEGREE,
                                                "stage", stage, "billions",
                                                GPU_GB / states(stage, DEGREE) * largest[i].mp,
                                                "paper_billions", largest[i].parameters[stage]));
        return rows;
}

/* ---- table 3: configurations of figure 6 ------------------------------------------------ */

enum { MP = 16, CONFIGURATION_GPUS = 400 };

/* The paper's text names no largest model of C3. */
static const struct {
        const char *name, *parts;
        int stage;
        double billions; /* measured, figure 6; 0: not named in the text */
} configurations[ROWS] = {
        { "C1", "Pos, CB+MD", 1, 40 },
        { "C2", "Pos, CB+MD, Pa", 1, 60 },
        { "C3", "Pos+g, CB+MD", 2, 0 },
        { "C4", "Pos+g, CB+MD, Pa", 2, 140 },
        { "C5", "Pos+g, CB+MD, Pa+cpu", 2, 150 },
};

static json_t *table3(void)
{
        json_t *rows = json_array();

        for (int i = 0; i < ROWS; i++) {
                double measured = configurations[i].billions;
                double most = GPU_GB * MP /
                              states(configurations[i].stage, (double)CONFIGURATION_GPUS / MP);

                json_array_append_new(
                        rows,
                        json_pack("{s:s, s:s, s:i, s:f, s:o}", "configuration",
                                  configurations[i].name, "parts", configurations[i].parts, "stage",
                                  configurations[i].stage, "billions", most, "paper_billions",
                                  measured > 0 ? json_real(measured) : json_null()));
        }
        return rows;
}

json_t *plan_paper(void)
{
        return json_pack("{s:o, s:o, s:o}", "table1", table1(), "table2", table2(), "table3",
                         table3());
}

/* ---- for people -------------------------------------------------------------------- */

/* Two columns for each value: the formula's and the paper's. */
static void add_pair(struct table *t, double value, const json_t *paper)
{
        table_add(t, PAINT_NONE, "%.5g", value);
        table_add(t, PAINT_NONE, json_is_null(paper) ? "-" : "%.5g", json_number_value(paper));
}

static void show_table1(const struct ctl *ctl, FILE *out, const json_t *rows)
{
        struct table t;
        json_t *row;
        size_t i;

        fputs("Table 1: GB of model states of each process (sections 3.1 and 5, mixed precision, "
              "Adam)\n",
              out);
        table_init(&t, "MODEL|>PROCESSES|>STAGE 1|>PAPER|>STAGE 2|>PAPER|>STAGE 3|>PAPER");
        json_array_foreach(rows, i, row)
        {
                if (i % STAGES == 0) {
                        table_add(&t, PAINT_NONE, "%s", field_text(row, "model"));
                        table_add(&t, PAINT_NONE, "%.0f", field_number(row, "processes"));
                }
                add_pair(&t, field_number(row, "gb"), json_object_get(row, "paper_gb"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

static void show_table2(const struct ctl *ctl, FILE *out, const json_t *rows)
{
        struct table t;
        json_t *row;
        size_t i;

        fprintf(out,
                "\nTable 2: largest model by model states alone, in billions of parameters (GPUs "
                "of "
                "%d GB, data parallelism of %d)\n",
                GPU_GB, DEGREE);
        table_init(&t, ">MODEL PARALLEL|>GPUS|>NO STAGE|>PAPER|>STAGE 1|>PAPER|>STAGE 2|>PAPER|"
                       ">STAGE 3|>PAPER");
        json_array_foreach(rows, i, row)
        {
                if (i % (STAGES + 1) == 0) {
                        table_add(&t, PAINT_NONE, "%.0f", field_number(row, "model_parallel"));
                        table_add(&t, PAINT_NONE, "%.0f", field_number(row, "gpus"));
                }
                add_pair(&t, field_number(row, "billions"), json_object_get(row, "paper_billions"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

void plan_paper_show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        struct table t;
        json_t *row;
        size_t i;

        fputs("ZeRO, arXiv 1910.02054\n\n", out);
        show_table1(ctl, out, json_object_get(answer, "table1"));
        show_table2(ctl, out, json_object_get(answer, "table2"));
        fprintf(out,
                "\nTable 3: configurations of figure 6, model parallelism of %d; AT MOST is what "
                "model states alone\nwould allow on %d GPUs of %d GB, MEASURED what ran with "
                "activations, in billions of parameters\n",
                MP, CONFIGURATION_GPUS, GPU_GB);
        table_init(&t, "CONFIGURATION|PARTS|>AT MOST|>MEASURED");
        json_array_foreach(json_object_get(answer, "table3"), i, row)
        {
                table_add(&t, PAINT_NONE, "%s", field_text(row, "configuration"));
                table_add(&t, PAINT_NONE, "%s", field_text(row, "parts"));
                add_pair(&t, field_number(row, "billions"), json_object_get(row, "paper_billions"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}
