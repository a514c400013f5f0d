"""The embedded composition: API, implementer, scheduler and worker in one process."""
