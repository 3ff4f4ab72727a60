"""Where jobs run and how: options, environment variables, profiles, and the folders on this machine."""
