// Settings of a model load that upstream's call sites read. They hold for loads on the calling thread.
#pragma once

// Whether a mapped model file is read ahead (MAP_POPULATE and WILLNEED). True unless a load asked otherwise.
bool forge_load_prefetch();

// Sets the answer for one load and restores the previous one.
class forge_load_scope {
  public:
    explicit forge_load_scope(bool prefetch);
    ~forge_load_scope();
    forge_load_scope(const forge_load_scope &)             = delete;
    forge_load_scope & operator=(const forge_load_scope &) = delete;

  private:
    bool previous;
};
