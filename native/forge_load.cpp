#include "forge_load.h"

static thread_local bool prefetch_of_this_load = true;

bool forge_load_prefetch() {
    return prefetch_of_this_load;
}

forge_load_scope::forge_load_scope(bool prefetch) : previous(prefetch_of_this_load) {
    prefetch_of_this_load = prefetch;
}

forge_load_scope::~forge_load_scope() {
    prefetch_of_this_load = previous;
}
