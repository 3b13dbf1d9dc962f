/* The types of all records. */
#include "daemon/status/fields.h"

STATUS_RECORDS(RECORD_DEFINE)
