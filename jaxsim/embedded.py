def workload(name):
    raise NotImplementedError
def workload_names(): return ()
