# Anchor3R on the CPU:        docker build -t anchor3r .
# With CUDA (NVIDIA runtime): docker build -t anchor3r:cuda --build-arg TORCH_INDEX= .
# Then, for example:          docker run --rm -v "$PWD:/data" anchor3r map /data/video.mp4 --out /data/my_map
FROM python:3.11-slim AS build
# Empty takes PyPI's build of torch, which brings CUDA along; the usual value the CPU build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=viewer,exports,heic,bags,rerun
RUN python -m venv /opt/anchor3r
ENV PATH=/opt/anchor3r/bin:$PATH
WORKDIR /src
# Dependencies first: they change less often than the sources, and are most of the image.
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

FROM python:3.11-slim
COPY --from=build /opt/anchor3r /opt/anchor3r
ENV PATH=/opt/anchor3r/bin:$PATH NUMBA_CACHE_DIR=/opt/anchor3r/kernels
# Compiles the kernels once, for whoever runs the image, and shows that it works.
RUN anchor3r doctor && chmod -R a+rwX /opt/anchor3r/kernels
WORKDIR /data
EXPOSE 8080
ENTRYPOINT ["anchor3r"]
CMD ["--help"]
