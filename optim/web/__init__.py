"""`fleetgrad serve`: a local page over the Python API. Importing this needs none of the packages of the extra `serve`.

`app` has the routes, `guard` what stands before them; `question` what the page asks, `answer` the figures while sliders
move; `uploads` and `store` what is kept; `jobs` the queue, `run_job` the process of one job.
"""
