"""The applications. Each imports the library, and none imports another but `services.local`."""
